"""What a topic of acks says of runs: which were started, by whom and how often, and that each ended once. Pure but
for `read`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline import codec
from pipeline.core.errors import DuelineError
from pipeline.core.job import Ack, AckState
from pipeline.core.keys import AcksKind, parse_acks_key
from pipeline.ports import Reader

TOLD = 3
"""Runs named in an error."""
FACTS = (AcksKind.STARTED, AcksKind.TERMINAL)

RunName = tuple[str, int]
"""(occurrence id, run)."""


class Fact(NamedTuple):
    """One record of one attempt and its LogAppendTime."""

    ack: Ack
    at: int

    @property
    def run(self) -> RunName:
        return self.ack.occurrence_id, self.ack.run


@dataclass(slots=True)
class Account:
    """Facts added up in the order of the log; those of one run stand on one partition."""

    starts: dict[RunName, list[Fact]] = field(default_factory=dict)
    ends: dict[RunName, list[Fact]] = field(default_factory=dict)
    released: int = 0
    after_end: dict[tuple[RunName, int], Fact] = field(default_factory=dict)
    """Starts behind an end of the same run, by token; one that was released never reached its handler."""

    def add(self, fact: Fact) -> None:
        run, ack = fact.run, fact.ack
        if ack.state is AckState.STARTED:
            self.starts.setdefault(run, []).append(fact)
            if run in self.ends:
                self.after_end[run, ack.token] = fact
        elif ack.state is AckState.RELEASED:
            self.released += 1
            self.starts[run] = [start for start in self.starts.get(run, []) if start.ack.token != ack.token]
            self.after_end.pop((run, ack.token), None)
        else:
            self.ends.setdefault(run, []).append(fact)

    # -- promises -------------------------------------------------------------------------------------------

    def check(self, occurrences: Collection[str]) -> None:
        """DuelineError unless each of these has one run that succeeded once and was not started after that."""
        wanted = {(occurrence, 1) for occurrence in occurrences}
        _refuse("did not finish", wanted - self.ends.keys())
        _refuse("finished and nobody asked for them", self.ends.keys() - wanted)
        _refuse("have more than one end", (run for run, ends in self.ends.items() if len(ends) > 1))
        _refuse("ended without a start", {run for run in self.ends if not self.starts.get(run)})
        _refuse("were started again after their end", {run for run, _ in self.after_end})
        failed = {run: ends[0].ack for run, ends in self.ends.items() if _failed(ends[0].ack)}
        if failed:
            ack = next(iter(failed.values()))
            raise DuelineError(
                f"{len(failed)} runs ended otherwise than well, one as {ack.state}: {ack.error}"
            )

    @property
    def restarted(self) -> Mapping[RunName, Fact]:
        """Runs that were started more than once, and the last start of each. What was given back does not count: its
        attempt was not spent."""
        return {run: starts[-1] for run, starts in self.starts.items() if _again(starts)}

    def left_open_by(self, worker: str) -> set[RunName]:
        """What this worker started and did not end."""
        started = {run for run, facts in self.starts.items() if any(f.ack.worker == worker for f in facts)}
        return started - {run for run, ends in self.ends.items() if ends[0].ack.worker == worker}


def _again(starts: Sequence[Fact]) -> bool:
    return len(starts) > 1 or (bool(starts) and starts[0].ack.attempt > 1)


def _failed(ack: Ack) -> bool:
    return ack.state is not AckState.SUCCEEDED


def _refuse(what: str, runs: Iterable[RunName]) -> None:
    found = sorted(runs)
    if found:
        raise DuelineError(f"{len(found)} runs {what}, such as {found[:TOLD]}")


def account(facts: Iterable[Fact]) -> Account:
    found = Account()
    for fact in facts:
        found.add(fact)
    return found


def read(reader: Reader, topic: str) -> Account:
    """All that was committed until now. Undecodable if a record is not ours."""
    return account(
        fact for partition in range(reader.partitions(topic)) for fact in _facts(reader, topic, partition)
    )


def _facts(reader: Reader, topic: str, partition: int) -> Iterator[Fact]:
    for record in reader.read(topic, partition):
        value = record.value()
        if value is not None and parse_acks_key(record.key() or b"").kind in FACTS:
            yield Fact(codec.ACK.decode(value), record.timestamp()[1])
