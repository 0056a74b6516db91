"""What `dueline status` says of queues."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from pipeline.cli.queue_show import pause_view
from pipeline.cli.store import Store
from pipeline.follower.fleet import queue_view
from pipeline.heartbeat import Seen
from pipeline.queues import oldest_unended, read_states, waiting


def queues_view(store: Store, processes: Sequence[Seen], *, count: bool) -> list[dict[str, Any]]:
    """Every queue: what waits in it, what its workers say of it, and whether it is paused. `count`: read all that
    waits."""
    names, layout = store.parts.names, store.layout
    states = read_states(store.parts.reader, names.meta)
    with closing(store.parts.open_scan()) as scan:
        return [
            {
                **queue_view(
                    queue,
                    processes,
                    waiting(scan, names, queue, partitions).count if count else None,
                    oldest_unended(scan, names, queue, partitions),
                ),
                "paused": pause_view(states[queue].pause if queue in states else None),
            }
            for queue, partitions in sorted(layout.queues.items())
        ]
