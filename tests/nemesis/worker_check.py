"""A full read of `work` and `acks` and of the effect tables after a storm, held against the promises."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from nemesis import storm_wire as wire
from nemesis.storm_check import Row, read_all
from nemesis.worker_effects import Effects
from nemesis.worker_faults import Life

FINAL = ("succeeded", "dead", "cancelled")
THAW_MS = 4_000
"""For a thawed worker to notice what it has lost."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a job that was created is to come to."""

    state: str
    effects: int
    child: bool = False


@dataclass(slots=True)
class Verdict:
    jobs: int = 0
    runs: int = 0
    starts: int = 0
    again: int = 0
    """Handlers started though the same run was started before, or after."""
    refused: int = 0
    """Late writes that the sink refused."""
    ignored: int = 0
    """Acks of starts that another one had replaced: no record of them is left."""
    states: Counter[str] = field(default_factory=Counter)
    found: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def say(self, kind: str, text: str) -> None:
        self.found[kind].append(text)

    def line(self) -> str:
        bad = {kind: len(found) for kind, found in self.found.items()}
        return (
            f"jobs {self.jobs} {dict(self.states)} | runs {self.runs} | starts {self.starts}, {self.again} of a run"
            f" that had another | refused {self.refused} | bad {bad}"
        )


@dataclass(slots=True)
class Facts:
    """What was read."""

    work: list[Row]
    acks: list[Row]
    starts: list[tuple[str, int, int, int, int]]
    """Occurrence, run, token, pid, time in ms; also of `refused`."""
    refused: list[tuple[str, int, int, int, int]]
    effects: list[tuple[str, int, int, int]]
    """Idempotency key, token, pid, time."""
    written: list[tuple[str, int]]


def read_facts(bootstrap: str, prefix: str, partitions: int, effects: Effects) -> Facts:
    return Facts(
        work=read_all(bootstrap, f"{prefix}.work.default", partitions),
        acks=read_all(bootstrap, f"{prefix}.acks.default", partitions),
        **{name: effects.rows(name) for name in ("starts", "refused", "effects", "written")},
    )


def states(acks: list[Row]) -> dict[str, str]:
    """State of the latest run of each occurrence that has a terminal ack."""
    latest: dict[str, tuple[int, str]] = {}
    for row in acks:
        if row.key.startswith("t/") and row.value is not None:
            ack = wire.read(row.value)
            latest[ack["occurrence_id"]] = max(
                latest.get(ack["occurrence_id"], (0, "")), (ack["run"], ack["state"])
            )
    return {occurrence: state for occurrence, (_, state) in latest.items()}


class Check:
    """`expected`: jobs by id, but for those that handlers have scheduled. `lives`: all workers there were."""

    def __init__(self, facts: Facts, expected: dict[str, Expected], lives: list[Life]) -> None:
        self.facts, self.expected = facts, expected
        self.lives = {life.pid: life for life in lives}
        self.verdict = Verdict(jobs=len(expected), starts=len(facts.starts), refused=len(facts.refused))
        self.runs: dict[tuple[str, int], dict[str, Any]] = {}
        self.acks: dict[tuple[str, int], tuple[dict[str, Any], Row]] = {}
        self.children: Counter[str] = Counter()
        self.took_workers: set[str] = set()
        """Jobs that are dead since three workers died over them: a long storm does that to innocent ones."""

    def run(self) -> Verdict:
        self._read_work()
        self._read_acks()
        for occurrence, wanted in self._all().items():
            self._outcome(occurrence, wanted)
        self._starts()
        self._effects()
        self._tokens()
        return self.verdict

    # -- the log --------------------------------------------------------------------------------------------

    def _read_work(self) -> None:
        for row in self.facts.work:
            run = wire.read(row.value or b"")
            name = run["occurrence_id"], run["run"]
            if name in self.runs:
                self.verdict.say("doubled", f"{name} stands on work twice")
            elif run["run"] == 1 and run["handler"] == "storm.child":
                self.children[json.loads(run["payload"])["parent"]] += 1
            self.runs[name] = run
        self.verdict.runs = len(self.runs)

    def _read_acks(self) -> None:
        frozen = {life.process_id(): life for life in self.lives.values() if life.freezes}
        for row in self.facts.acks:
            if row.value is None or row.key[:2] not in ("t/", "s/"):
                continue
            ack = wire.read(row.value)
            name = ack["occurrence_id"], ack["run"]
            if row.key.startswith("t/"):
                if name in self.acks:
                    self.verdict.say(
                        "acked twice", f"{name}: attempts {self._attempt(name)} and {ack['attempt']}"
                    )
                self.acks[name] = ack, row
            elif ack["state"] == "started" and name in self.acks and ack["worker"] not in frozen:
                self.verdict.say(
                    "started after its ack", f"{name} by {ack['worker']}, which was never frozen"
                )
        for name in self.acks.keys() - self.runs.keys():
            self.verdict.say("odd", f"{name} has an ack and no run")

    def _attempt(self, name: tuple[str, int]) -> int:
        return int(self.acks[name][0]["attempt"])

    def _all(self) -> dict[str, Expected]:
        born = {
            occurrence
            for occurrence, run in self.runs
            if self.runs[occurrence, run]["handler"] == "storm.child"
        }
        return self.expected | dict.fromkeys(born, Expected("succeeded", 1))

    def _outcome(self, occurrence: str, wanted: Expected) -> None:
        number, states = 1, []
        while (occurrence, number) in self.runs:
            ack = self.acks.get((occurrence, number))
            if ack is None:
                self.verdict.say("lost", f"{occurrence} run {number} has no terminal ack")
                return
            states.append(ack[0]["state"])
            if ack[0]["error"] is not None and ack[0]["error"]["type"] == "WorkerDied":
                self.took_workers.add(occurrence)
            number += 1
        self.verdict.states[states[-1] if states else "never fired"] += 1
        if occurrence in self.took_workers:
            return
        if not states or states[-1] != wanted.state or states.count("succeeded") > 1:
            self.verdict.say("outcome", f"{occurrence} is {states}, wanted {wanted.state}")
        if self.children[occurrence] != wanted.child:
            self.verdict.say(
                "children", f"{occurrence} has {self.children[occurrence]}, wanted {wanted.child}"
            )

    # -- starts of handlers ---------------------------------------------------------------------------------

    def _starts(self) -> None:
        of_run: dict[tuple[str, int], set[int]] = defaultdict(set)
        for occurrence, run, token, pid, at in self.facts.starts:
            name, life = (occurrence, run), self.lives.get(pid)
            of_run[name].add(token)
            if life is None:
                self.verdict.say("odd", f"{name} ran in {pid}, which is no worker")
                continue
            ack, row = self.acks.get(name, ({"token": None}, None))
            if token != ack["token"] and not life.struck(at - 1_000) and not life.thawed(at, THAW_MS):
                self.verdict.say("restarted", f"{name} at {at} in {pid}, to which nothing had happened")
            if row is not None and at > row.at + 50 and not life.thawed(at, THAW_MS):
                self.verdict.say(
                    "started after its ack", f"{name}: its handler, in {pid}, {at - row.at} ms later"
                )
        if len(self.facts.starts) != sum(map(len, of_run.values())):
            self.verdict.say("restarted", "a token was used for two starts of a handler")
        self.verdict.again = sum(len(tokens) - 1 for tokens in of_run.values())
        for name, (ack, _) in self.acks.items():
            if ack["state"] == "succeeded" and ack["token"] not in of_run[name]:
                self.verdict.say("odd", f"{name} succeeded and its handler never began")

    # -- effects --------------------------------------------------------------------------------------------

    def _effects(self) -> None:
        done = Counter(key for key, *_ in self.facts.effects)
        for occurrence, wanted in self._all().items():
            if done[occurrence] > 1:
                self.verdict.say("effect doubled", f"{occurrence}: {done[occurrence]} times")
            elif done[occurrence] != wanted.effects and occurrence not in self.took_workers:
                self.verdict.say(
                    "effect lost", f"{occurrence}: {done[occurrence]} times, wanted {wanted.effects}"
                )

    def _tokens(self) -> None:
        """The attempts of an occurrence leave their marks in the order of their tokens, and so in that of the log."""
        last: dict[str, int] = {}
        for occurrence, token in self.facts.written:
            if token <= last.get(occurrence, 0):
                self.verdict.say("token", f"{occurrence}: {token} after {last[occurrence]}")
            last[occurrence] = token
        for (occurrence, run), (ack, _) in self.acks.items():
            before = self.acks.get((occurrence, run - 1))
            if before is not None and ack["token"] <= before[0]["token"]:
                self.verdict.say("token", f"{occurrence}: run {run} has none larger than the one before")
            if ack["state"] == "succeeded" and ack["result"] and b'"token"' in ack["result"]:
                told = json.loads(ack["result"])["token"]
                if told != str(ack["token"]):
                    self.verdict.say(
                        "token", f"{occurrence}: the result of {told} under the ack of {ack['token']}"
                    )
