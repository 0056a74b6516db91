"""Dead letters: what gave up, or could not be read, and was not requeued since.

The letter of the latest run of an occurrence counts. A requeue leaves a mark under its key, a record without a value
that names the new run: letters of earlier runs are dealt with.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.core.job import AttemptRecord, DeadLetter, Run
from pipeline.follower.job import View
from pipeline.follower.letter_groups import kind_of
from pipeline.follower.values import headers_of, shown_error, shown_instant, shown_json
from pipeline.ports import Reader, Record

UNREADABLE = "unreadable"
"""Reason shown for a letter that nobody can read."""
_RUN_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedLetters:
    """Which letters; None = any. `ids`: of jobs or occurrences. `error`: type of the error. `group`: as
    `letter_groups` names it. `since`: epoch ms. `queues`: of these only, beside `queue`, as whoever asks is limited to
    them."""

    ids: frozenset[str] | None = None
    handler: str | None = None
    queue: str | None = None
    queues: frozenset[str] | None = None
    reason: str | None = None
    error: str | None = None
    group: str | None = None
    since: int | None = None

    def matches(self, view: Mapping[str, Any], at: int) -> bool:
        """`view`: a letter as it is listed, `at`: when it died, epoch ms."""
        if self.ids is not None and self.ids.isdisjoint((view["id"], view["occurrence_id"])):
            return False
        if self.queues is not None and view["queue"] not in self.queues:
            return False
        return (
            self.handler in (None, view["handler"])
            and self.queue in (None, view["queue"])
            and self.reason in (None, view["reason"])
            and (self.since is None or at >= self.since)
            and self._is_of_kind(view)
        )

    def _is_of_kind(self, view: Mapping[str, Any]) -> bool:
        if self.error is None and self.group is None:
            return True
        kind = kind_of(view)
        return self.error in (None, kind.error) and self.group in (None, kind.group)


class Letter(NamedTuple):
    """A letter that is wanted: where it stands on `dead`, and what it says. `job` is None if it is of no run."""

    partition: int
    offset: int
    at: int
    job: str | None
    view: View


class _Latest(NamedTuple):
    run: int
    at: int
    letter: Letter | None
    """None: it is the latest, and not wanted."""


def read_letters(reader: Reader, topic: str, wanted: WantedLetters, *, payload: bool) -> list[Letter]:
    """The wanted letters, the latest first. Memory follows the number of letters, and their payloads only if these are
    asked for. Raises StoreUnreachable, NotFound."""
    fold = _Fold(wanted, payload)
    for partition in range(reader.partitions(topic)):
        for record in reader.read(topic, partition):
            fold.take(record.key() or b"", partition, record)
    return sorted(fold.letters(), key=lambda letter: (-letter.at, letter.partition, letter.offset))


def read_runs(reader: Reader, topic: str, letters: Iterable[Letter]) -> Iterator[tuple[Letter, Run]]:
    """The runs of letters, with their payloads, one after the other as they are read."""
    by_place = {letter[:2]: letter for letter in letters}
    for partition in sorted({partition for partition, _ in by_place}):
        offsets = [offset for number, offset in by_place if number == partition]
        first, last = min(offsets), max(offsets)
        for record in reader.read(topic, partition, start=first):
            offset = record.offset() or 0
            letter = by_place.get((partition, offset))
            found = None if letter is None else read_letter(record)
            if letter is not None and found is not None and found.run is not None:
                yield letter, found.run
            if offset >= last:
                break


def latest_of_each(letters: Sequence[Letter], ids: Iterable[str]) -> list[Letter]:
    """Of a job that is named, the latest letter: its key may have had several incarnations."""
    named, latest = frozenset(ids), dict[str | None, Letter]()
    for letter in letters:
        name = letter.view["occurrence_id"] if letter.view["occurrence_id"] in named else letter.job
        latest.setdefault(name, letter)
    return list(latest.values())


def without_letter(ids: Iterable[str], letters: Iterable[Letter]) -> set[str]:
    """Those of `ids` that have none."""
    return set(ids) - {name for letter in letters for name in (letter.job, letter.view["occurrence_id"])}


class _Fold:
    """All letters of a topic. Marks and letters of one occurrence may stand on different partitions, so they are told
    apart by their runs."""

    def __init__(self, wanted: WantedLetters, payload: bool) -> None:
        self._wanted = wanted
        self._payload = payload
        self._latest: dict[str, _Latest] = {}
        self._requeued: dict[str, int] = {}
        self._places: dict[bytes, Letter] = {}

    def letters(self) -> Iterator[Letter]:
        yield from self._places.values()
        for occurrence, latest in self._latest.items():
            if latest.letter is not None and latest.run >= self._requeued.get(occurrence, 0):
                yield latest.letter

    def take(self, key: bytes, partition: int, record: Record) -> None:
        if record.value() is None:
            occurrence, run = key.decode("utf-8", "replace"), run_of_mark(headers_of(record))
            self._requeued[occurrence] = max(run, self._requeued.get(occurrence, 0))
            return
        letter = read_letter(record)
        if letter is None or letter.run is None:
            self._unreadable(key, partition, record, letter)
        else:
            self._readable(partition, record, letter, letter.run)

    def _readable(self, partition: int, record: Record, letter: DeadLetter, run: Run) -> None:
        known = self._latest.get(run.occurrence_id)
        if known is not None and (known.run, known.at) > (run.run, letter.at):
            return
        found = self._wanted_of(letter, partition, record)
        self._latest[run.occurrence_id] = _Latest(run.run, letter.at, found)

    def _unreadable(self, key: bytes, partition: int, record: Record, letter: DeadLetter | None) -> None:
        told = letter or unreadable_letter(key, record)
        found = self._wanted_of(told, partition, record)
        if found is not None:
            self._places[place_of_letter(told)] = found

    def _wanted_of(self, letter: DeadLetter, partition: int, record: Record) -> Letter | None:
        view = letter_view(letter, payload=False)
        if not self._wanted.matches(view, letter.at):
            return None
        if self._payload:
            view = letter_view(letter, payload=True)
        return Letter(partition, record.offset() or 0, letter.at, view["id"], view)


def unreadable_letter(key: bytes, record: Record) -> DeadLetter:
    """What is told of a letter that nobody can read."""
    return DeadLetter(
        reason=UNREADABLE,
        detail="the letter itself cannot be read",
        at=record.timestamp()[1],
        source_topic=record.topic() or "",
        source_partition=record.partition() or 0,
        source_offset=record.offset() or 0,
        record_key=key,
        value=record.value(),
    )


def place_of_letter(letter: DeadLetter) -> bytes:
    """By which those letters are told apart that are of no run."""
    return f"{letter.source_topic}/{letter.source_partition}/{letter.source_offset}".encode()


def read_letter(record: Record) -> DeadLetter | None:
    value = record.value()
    try:
        return None if value is None else codec.DEAD_LETTER.decode(value)
    except Undecodable:
        return None


def run_of_mark(headers: Mapping[str, str]) -> int:
    """Of a mark; one that names none marks nothing."""
    text = headers.get("run", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _RUN_DIGITS else 0


# -- as JSON ------------------------------------------------------------------------------------------------


def letter_view(letter: DeadLetter, *, payload: bool) -> View:
    run = letter.run
    stored = letter.value or b"" if run is None else run.payload
    view: View = {
        "id": run and run.job_id,
        "occurrence_id": run and run.occurrence_id,
        "handler": run and run.handler,
        "queue": run and run.queue,
        "reason": letter.reason,
        "detail": letter.detail,
        "at": shown_instant(letter.at),
        "run": run and run.run,
        "attempts": [_attempt(attempt) for attempt in letter.attempts],
        "source": {
            "topic": letter.source_topic,
            "partition": letter.source_partition,
            "offset": letter.source_offset,
        },
        "payload_bytes": len(stored),
    }
    if payload:
        view["payload"] = None if run is None else shown_json(stored)
        view["value_base64"] = base64.b64encode(stored).decode() if run is None else None
    return view


def _attempt(attempt: AttemptRecord) -> View:
    return {
        "run": attempt.run,
        "attempt": attempt.attempt,
        "worker": attempt.worker,
        "token": str(attempt.token),
        "at": shown_instant(attempt.at),
        "outcome": attempt.outcome,
        "error": shown_error(attempt.error),
    }
