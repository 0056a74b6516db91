"""An index against its log: whether a dispatcher's index holds exactly what its partition says (DESIGN §4).

The log is folded anew, by the code that made the index, up to the position at which the index stands; then the two are
walked side by side. A running owner has applied some of its own writes before they come back through the log: the
record keys that stand behind the position are in motion, and are left out on both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from pipeline.core.job import EARLIEST, LATEST
from pipeline.core.keys import JOB, SCHEDULE
from pipeline.core.site import Site
from pipeline.partition import Partition
from pipeline.ports import Action, Entry, Index, Position, Record, Scan
from pipeline.survey.hashes import FLAGS, Hashes, Sieve

PAGE = 2_000
TOLD = 20
AT_ONCE = -1
"""The bucket of what is owed at once: it has no due time."""
_UNTIMED = frozenset({Action.GRANTED, Action.HOLD})
"""Their place in the order says something of the index alone, or nothing."""


@dataclass(slots=True)
class Sum:
    """How many entries, and a checksum that does not depend on their order."""

    count: int = 0
    checksum: int = 0

    def add(self, hashed: int) -> None:
        self.count += 1
        self.checksum = (self.checksum + hashed) & ((1 << 64) - 1)


class Difference(NamedTuple):
    bucket: int
    record_key: bytes
    detail: str


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Of one partition. `index` and `log` are sums by bucket of due time; `differences` are the first ones, by key."""

    partition: int
    position: int
    in_motion: int
    index: dict[int, Sum] = field(default_factory=lambda: defaultdict(Sum))
    log: dict[int, Sum] = field(default_factory=lambda: defaultdict(Sum))
    differing: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def unequal(self) -> list[int]:
        """Buckets whose sums differ."""
        return sorted(bucket for bucket in {*self.index, *self.log} if self.index[bucket] != self.log[bucket])


def trusted(position: Position, site: Site, now: int) -> bool:
    """Whether an index with this position is of this log, and fresh; its owner throws it away if it is not."""
    identity = position.cluster_id, position.topic_id, position.layout
    same = identity == (site.cluster_id, site.topic_id, site.layout.identity())
    return same and now - position.synced_at < site.stale_after_ms


def compare(
    number: int, index: Index, scratch: Index, position: Position, site: Site, scan: Scan, now: int
) -> Comparison:
    """Partition `number` of `index`, which stands at `position`, against its log. `scratch` is an empty index, which
    holds what the log says afterwards; `now` is the store's clock in ms. Raises StopPartition if the log has records of
    a schema that was announced and is unknown here."""
    moving = _fold(number, scratch, position.offset, site, scan, now)
    found = Comparison(partition=number, position=position.offset, in_motion=len(moving))
    width = site.layout.bucket_width_ms
    for here, there in _side_by_side(_walk(index, number), _walk(scratch, number)):
        entry = here or there
        if entry is None or entry.record_key in moving:
            continue
        if here is not None and there is not None and _alike(here, there):
            _count(here, _hash(here), found.index, found.log, width)
            continue
        of_index, of_log = here and _canonical(here, there), there and _canonical(there, here)
        if of_index is not None:
            _count(of_index, _hash(of_index), found.index, None, width)
        if of_log is not None:
            _count(of_log, _hash(of_log), None, found.log, width)
        if of_index != of_log:
            found.differing += 1
            if len(found.differences) < TOLD:
                said = of_log or of_index
                assert said is not None
                detail = _detail(of_index, of_log)
                found.differences.append(Difference(_bucket(said, width), entry.record_key, detail))
    return found


def _fold(number: int, scratch: Index, until: int, site: Site, scan: Scan, now: int) -> Set[bytes]:
    """Fold the log up to offset `until`; the keys of what stands behind it."""
    topic = site.names.jobs
    scan.decided(topic, number)
    span = scan.span(topic, number)
    partition, moving = Partition(number, site=site, index=scratch), set[bytes]()
    matter = _what_matters(scan, topic, number, span.start, min(until, span.end))
    for batch in scan.batches(topic, number, span.start, span.end):
        before = [record for record in batch if (record.offset() or 0) < until]
        if fold := [record for record in before if _matters(record, matter)]:
            partition.ingest(fold, 0, now)
        moving.update(record.key() or b"" for record in batch[len(before) :])
    return moving


def _what_matters(scan: Scan, topic: str, number: int, start: int, until: int) -> Sieve:
    """Jobs whose records an index cannot do without. One that was put once and ended once, as nearly all are, leaves
    nothing in it: to fold a million of them takes ten times as long as to find that out."""
    matter = Sieve()
    with Hashes(until - start) as said:
        for batch in scan.batches(topic, number, start, until):
            said.add(
                [
                    hash(key) & ~FLAGS | (record.value() is not None)
                    for record in batch
                    if (key := record.key() or b"").startswith(JOB)
                ]
            )
        for group in said.groups():
            once, over = set[int](), set[int]()
            for each in group:
                hashed = each & ~FLAGS
                if hashed in over:
                    matter.add(hashed)
                elif each & FLAGS == 0:
                    once.discard(hashed)
                    over.add(hashed)
                elif hashed in once:
                    matter.add(hashed)
                else:
                    once.add(hashed)
            for hashed in once:
                matter.add(hashed)
    return matter


def _matters(record: Record, matter: Sieve) -> bool:
    key = record.key() or b""
    return not key.startswith(JOB) or key in matter


def _walk(index: Index, number: int) -> Iterator[Entry]:
    """All entries in the order of their record keys."""
    after: bytes | None = None
    while page := index.entries(number, after, PAGE):
        yield from page
        after = page[-1].record_key


def _side_by_side(a: Iterator[Entry], b: Iterator[Entry]) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Pairs of one record key; None where one side has none."""
    left, right = next(a, None), next(b, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left.record_key < right.record_key):
            yield left, None
            left = next(a, None)
        elif left is None or right.record_key < left.record_key:
            yield None, right
            right = next(b, None)
        else:
            yield left, right
            left, right = next(a, None), next(b, None)


def _alike(here: Entry, there: Entry) -> bool:
    """Nearly all are: only the offset of an own write, which has not been read back, may differ."""
    return here[1] == there[1] and here[3:] == there[3:] and here.action not in _UNTIMED


def _count(
    entry: Entry, hashed: int, index: dict[int, Sum] | None, log: dict[int, Sum] | None, width_ms: int
) -> None:
    bucket = _bucket(entry, width_ms)
    for sums in (index, log):
        if sums is not None:
            sums[bucket].add(hashed)


def _canonical(entry: Entry, other: Entry | None) -> Entry:
    """What an entry says beside `other`, without what says something of the index alone: where in a rate or behind what
    it waits, and when a schedule is looked at again."""
    _, fire_at, _, action, _, _ = entry
    if action == Action.REPLAY:  # nor how far a replay is, and when its queue has room for more
        return entry._replace(fire_at=0, offset=0, detail="")
    if action == Action.GRANTED:
        action = Action.FIRE
    put_off = entry.action in _UNTIMED or fire_at == LATEST or entry.record_key.startswith(SCHEDULE)
    if put_off or (other is not None and (other.action in _UNTIMED or other.fire_at == LATEST)):
        fire_at = min(fire_at, other.fire_at) if other is not None else fire_at
    return entry._replace(fire_at=fire_at, offset=0, action=action)


def _bucket(entry: Entry, width_ms: int) -> int:
    return AT_ONCE if entry.fire_at <= EARLIEST else entry.fire_at // width_ms


def _hash(entry: Entry) -> int:
    digest = blake2b(entry.value, digest_size=8)
    digest.update(b"%b\0%d\0%d\0%b" % (entry.record_key, entry.fire_at, entry.action, entry.detail.encode()))
    return int.from_bytes(digest.digest(), "big")


def _detail(index: Entry | None, log: Entry | None) -> str:
    if index is None:
        return "the log has it, the index has not"
    if log is None:
        return "the index has it, the log has not"
    names = [n for n, a, b in zip(Entry._fields, index, log, strict=True) if a != b]
    return f"{', '.join(names)} differ"
