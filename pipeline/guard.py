"""The group guard: a group whose generations began anew is noticed before it fires anything (DESIGN §7, H20).

A coordinator forgets a group that was deleted, expired or restored from elsewhere, and counts from 1 again. Then
generations no longer tell old from new. So the owner of a partition records its generation on `meta` in its
takeover transaction, whose offsets fence a stale member, and the next owner compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Refused
from pipeline.core.job import GroupGuard
from pipeline.core.names import Names
from pipeline.ports import Put


def check_guards(
    guards: Mapping[int, GroupGuard], *, group: str, partitions: Iterable[int], generation: int, topic_id: str
) -> None:
    """Refused if any of `partitions` was owned in a later generation than ours. No guard: a new partition, or
    an era was begun. Another topic id: the topic was deleted and made anew, and its guard says nothing."""
    for partition in sorted(partitions):
        guard = guards.get(partition)
        if guard is not None and guard.topic_id == topic_id and guard.generation > generation:
            raise Refused(
                f"group {group} is at generation {generation}, but partition {partition} was owned in generation"
                f" {guard.generation}: the group was deleted, expired or restored. Stop all dispatchers and"
                " workers, run `dueline era bump`, then start them again"
            )


def guard_puts(
    names: Names, *, group: str, partitions: Iterable[int], generation: int, topic_id: str
) -> list[Put]:
    """The guards to write together with a takeover: never without the offsets of the same partitions."""
    value = codec.GROUP_GUARD.encode(GroupGuard(generation=generation, topic_id=topic_id))
    return [Put(names.meta, 0, keys.guard_key(group, partition), value) for partition in partitions]
