"""Placement: from an id to the partition where its job lives for good (DESIGN §4).

A bucket (a slice of due time) is spread over `shards` partitions, one in each ring; the next bucket moves on
one place in every ring. The skew says where in its ring a shard begins; it is searched so that the
partitions of a bucket never gather on few owners.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.hashing import murmur2, text_hash
from pipeline.core.ids import due_in, due_of, keyed_home_hash, parse_occurrence
from pipeline.core.names import check_name

DEFAULT_SHARDS = 4
DEFAULT_RING = 6
DEFAULT_SKEW = (0, 0, 5, 5)
DEFAULT_BUCKET_WIDTH_MS = 60_000
DEFAULT_WORK_PARTITIONS = 12
HASH = "murmur2"
VERSION = 1
OWNERS = range(2, 9)
"""Numbers of owners over which a bucket must be spread evenly."""

_PLACEMENT = ("partitions", "shards", "ring", "skew", "bucket_width_ms", "hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What every process must agree on before it touches a topic; kept on `meta`; only queues are added.

    `queues` = work partitions by queue name; `fingerprints` = announced schemas, as 16 hex digits.
    InvalidInput if a number makes no sense; Refused if it is of a kind this version does not know.
    """

    partitions: int
    shards: int
    ring: int
    skew: tuple[int, ...]
    bucket_width_ms: int
    queues: Mapping[str, int]
    hash: str = HASH
    version: int = VERSION
    fingerprints: tuple[str, ...] = ()
    product_version: str = ""

    def __post_init__(self) -> None:
        if self.hash != HASH or self.version != VERSION:
            raise Refused(
                f"the layout has version {self.version} and hash {self.hash!r}, this process knows version"
                f" {VERSION} and {HASH!r}: upgrade it"
            )
        for name in ("shards", "ring", "bucket_width_ms"):
            _check_positive(name, getattr(self, name))
        if self.partitions != self.shards * self.ring:
            raise InvalidInput(
                "partitions", f"{self.partitions} is not shards {self.shards} x ring {self.ring}"
            )
        if len(self.skew) != self.shards or not all(0 <= place < self.ring for place in self.skew):
            raise InvalidInput("skew", f"{self.skew} is not {self.shards} numbers from 0 to {self.ring - 1}")
        for queue, partitions in self.queues.items():
            _check_positive(f"queue {check_name('queue', queue)}", partitions)

    def identity(self) -> str:
        """16 hex digits of what decides placement: equal if and only if every id has the same home."""
        text = "|".join(f"{name}={_plain(getattr(self, name))}" for name in _PLACEMENT)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: Layout) -> list[str]:
        """What differs in placement and queues, one line each (`other` is "there"); empty if nothing."""
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in _PLACEMENT]
        pairs += [
            (f"queue {queue}", self.queues.get(queue, "none"), other.queues.get(queue, "none"))
            for queue in sorted(self.queues.keys() | other.queues.keys())
        ]
        return [f"{name}: {_plain(a)} here, {_plain(b)} there" for name, a, b in pairs if a != b]

    def bucket(self, due_at: int) -> int:
        """The bucket of an instant in epoch ms."""
        return due_at // self.bucket_width_ms

    def home(self, id: str) -> int:
        """The home partition of a job or occurrence, read from any form of id; Undecodable if it is none."""
        if id[:1] == "j":
            due_at = due_of(id)
            shard = murmur2(id.encode()) % self.shards
            return shard * self.ring + (due_at // self.bucket_width_ms + self.skew[shard]) % self.ring
        if id[:1] == "k":
            return keyed_home_hash(id) % self.partitions
        return self.home_of_name(parse_occurrence(id).schedule_id)

    def route(self, id: bytes, queue: str) -> tuple[int, int]:
        """Home and work partition of an anonymous job without a serial group: both of one hash, for whoever files
        many. Undecodable if it is no such id, KeyError if there is no such queue."""
        due_at, hashed = due_in(id), murmur2(id)
        shard = hashed % self.shards
        home = shard * self.ring + (due_at // self.bucket_width_ms + self.skew[shard]) % self.ring
        return home, hashed % self.queues[queue]

    def home_of_name(self, name: str) -> int:
        """The home partition of what is placed by its whole text: a job's key, a schedule id."""
        return text_hash(name) % self.partitions

    def work_partition(self, queue: str, routing: str) -> int:
        """The work partition of a serial group, or of a job id without one; InvalidInput if no such queue."""
        partitions = self.queues.get(queue)
        if partitions is None:
            raise InvalidInput(
                "queue", f"{queue!r} is unknown: create it with `dueline topics create --queue`"
            )
        return text_hash(routing) % partitions


def default_layout(
    *,
    shards: int = DEFAULT_SHARDS,
    ring: int = DEFAULT_RING,
    bucket_width_ms: int = DEFAULT_BUCKET_WIDTH_MS,
    queues: Mapping[str, int] | None = None,
    fingerprints: tuple[str, ...] = (),
    product_version: str = "",
) -> Layout:
    """A layout with the skew its size needs; `queues` None = the queue `default` with 12 work partitions."""
    known = (shards, ring) == (DEFAULT_SHARDS, DEFAULT_RING)
    return Layout(
        partitions=shards * ring,
        shards=shards,
        ring=ring,
        skew=DEFAULT_SKEW if known else search_skew(shards, ring),
        bucket_width_ms=bucket_width_ms,
        queues={"default": DEFAULT_WORK_PARTITIONS} if queues is None else queues,
        fingerprints=fingerprints,
        product_version=product_version,
    )


# -- the skew -----------------------------------------------------------------------------------------------


def search_skew(shards: int, ring: int) -> tuple[int, ...]:
    """The best skew found for this size: coordinate descent from three starts, the same result every time.

    Cost grows with (shards * ring)**2: 0.1 s for 4 x 6, a second for 8 x 16.
    """
    _check_positive("shards", shards)
    _check_positive("ring", ring)
    dealt = list(assignments(shards * ring))
    starts = [tuple(shard * step % ring for shard in range(shards)) for step in range(3)]
    return min(_descend(start, ring, dealt) for start in starts)[1]


Assignment = tuple[int, list[int]]
"""(number of owners, owner by partition)."""


def assignments(partitions: int) -> Iterator[Assignment]:
    """How Kafka's range assignor and p mod n deal the partitions out to 2 to 8 owners."""
    for count in OWNERS:
        share, more = divmod(partitions, count)
        yield count, [owner for owner in range(count) for _ in range(share + (owner < more))]
        yield count, [partition % count for partition in range(partitions)]


def unevenness(skew: tuple[int, ...], ring: int, dealt: list[Assignment]) -> tuple[int, int]:
    """(the most partitions of any bucket by which any owner is off the even share, sum of squared loads)."""
    worst = squares = 0
    for bucket in range(ring):
        partitions = [shard * ring + (bucket + place) % ring for shard, place in enumerate(skew)]
        for count, owner in dealt:
            loads = [0] * count
            for partition in partitions:
                loads[owner[partition]] += 1
            share, more = divmod(len(skew), count)
            worst = max(worst, max(loads) - share - (more > 0), share - min(loads))
            squares += sum(load * load for load in loads)
    return worst, squares


def _descend(
    skew: tuple[int, ...], ring: int, dealt: list[Assignment]
) -> tuple[tuple[int, int], tuple[int, ...]]:
    best = (unevenness(skew, ring, dealt), skew)
    improved = True
    while improved:
        improved = False
        # Turning all shards alike changes nothing, so the first one stays.
        for shard in range(1, len(skew)):
            for place in range(ring):
                changed = (*best[1][:shard], place, *best[1][shard + 1 :])
                cost = unevenness(changed, ring, dealt)
                if cost < best[0]:
                    best, improved = (cost, changed), True
    return best


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise InvalidInput(name, f"{value} is less than 1")


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
