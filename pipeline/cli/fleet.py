"""What `dueline status` says of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.cli.queue_show import pause_view
from pipeline.cli.store import Store
from pipeline.follower.fleet import behind, queue_view
from pipeline.heartbeat import Seen
from pipeline.queues import read_states


def queues_view(store: Store, processes: Sequence[Seen]) -> list[dict[str, Any]]:
    """Every queue: how far its workers are behind, what they say of it, and whether it is paused."""
    states = read_states(store.parts.reader, store.parts.names.meta)
    return [
        {
            **queue_view(queue, processes, _behind(store, queue)),
            "paused": pause_view(states[queue].pause if queue in states else None),
        }
        for queue in sorted(store.layout.queues)
    ]


def _behind(store: Store, queue: str) -> tuple[int, int | None]:
    parts = store.parts
    topic, group = parts.names.work(queue), parts.names.worker_group(queue)
    return behind(parts.reader, topic, parts.group_progress(group, topic, store.layout.queues[queue]))
