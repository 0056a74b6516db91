"""The group guard: a group whose generations began anew is noticed before it fires anything (DESIGN §7, H20).

A coordinator forgets a group that was deleted, expired or restored from elsewhere, and counts from 1 again. Then
generations no longer tell old from new. So the owner of a partition records its generation on `meta` in its
takeover transaction, whose offsets fence a stale member, and the next owner compares.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGuards:
    """The guards of a group of workers on one work topic. A worker's guard is written with the first acks of an
    assignment, so a partition that has one has a committed offset, unless the group was lost.

    `read()` reads them anew; StoreUnreachable.
    """

    names: Names
    group: str
    topic_id: str
    read: Callable[[], Mapping[int, GroupGuard]]

    def check(self, guards: Mapping[int, GroupGuard], *, partitions: Iterable[int], generation: int) -> None:
        """Refused if the group has owned one of `partitions` in a later generation than ours."""
        check_guards(
            guards, group=self.group, partitions=partitions, generation=generation, topic_id=self.topic_id
        )

    def check_offsets(self, guards: Mapping[int, GroupGuard], bare: Collection[int]) -> None:
        """Refused if one of the partitions without a committed offset has a guard that was read before the offset
        was asked for: what it reads from its beginning would be started with smaller tokens than before."""
        for partition in sorted(bare):
            guard = guards.get(partition)
            if guard is not None and guard.topic_id == self.topic_id:
                raise Refused(
                    f"group {self.group} has no offset for partition {partition}, which it owned in generation"
                    f" {guard.generation}: the group was deleted or expired. Stop all workers, run `dueline era bump`"
                    " so that tokens go on growing, then start them: what was acked does not run again"
                )

    def put(self, partition: int, generation: int) -> Put:
        """The guard to write together with acks of the partition."""
        (put,) = guard_puts(
            self.names,
            group=self.group,
            partitions=[partition],
            generation=generation,
            topic_id=self.topic_id,
        )
        return put
