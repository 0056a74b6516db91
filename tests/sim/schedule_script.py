"""Schedules among the jobs of a simulated installation: what their grids fired is what they enumerate, less what was
told as skipped, through kills, freezes, lost indexes and hours without anybody."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from sim import script
from sim.clients import Clients
from sim.script import Play, Script
from sim.watch import ELSEWHERE, Watch
from sim.world import LAYOUT, NAMES, World

from pipeline import codec
from pipeline.adapters.memory_cluster import MemoryRecord
from pipeline.core import keys, series
from pipeline.core.ids import parse_occurrence
from pipeline.core.job import Command, Event, Run
from pipeline.core.limited import NOT_ALLOWED, QUEUES
from pipeline.core.schedule import Schedule, ScheduleSpec, spec_to_json

IDS = ("n0", "n1", "n2", "n3")
OUTCOMES = {
    "created", "existing", "updated", "paused", "resumed", "fired", "skipped", "started", "deleted", "not_found",
    "cancelled", "refused",
}  # fmt: skip
WEIGHTS = {
    **{name: weight for name, weight in script.WEIGHTS.items() if name not in ("rest", "day", "week")},
    "hour": 0.1, "make": 8,
    "edit": 1.5, "pause": 1.5, "resume": 3, "trigger": 2, "backfill": 0.7, "delete": 0.4, "end_one": 14,
}  # fmt: skip


class ScheduleWatch(Watch):
    """Keeps what schedules fired and were told to skip; everything else is watched as ever."""

    def __init__(self, now: Any) -> None:
        super().__init__(now)
        self.runs: dict[str, list[int]] = {}
        """Runs by occurrence."""
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.states: dict[str, Schedule] = {}
        self.gone: dict[tuple[str, int], Schedule] = {}
        """The last state of each incarnation."""

    def _work(self, record: MemoryRecord) -> None:
        run = codec.RUN.decode(record.value() or b"")
        if not run.occurrence_id.startswith("s:"):
            super()._work(record)
            return
        self.expect(record.timestamp()[1] >= run.due_at, f"early: {run}")
        seen = self.runs.setdefault(run.occurrence_id, [])
        self.expect(run.run == (seen[-1] if seen else 0) + 1, f"run {run.run} after {seen}: {run}")
        seen.append(run.run)
        parsed = parse_occurrence(run.occurrence_id)
        self.expect(run.nominal_at == parsed.nominal_at, f"nominal_at of {run}")

    def _event(self, record: MemoryRecord) -> None:
        event = codec.EVENT.decode(record.value() or b"")
        if event.kind == "skipped":
            detail = event.detail
            if detail["kind"] == "g":
                self.skipped[detail["schedule"], detail["incarnation"]] += int(detail["count"])
        command = self.commands.get(event.command_id or "")
        if command is None or not command.verb.startswith("schedule."):
            super()._event(record)
            return
        first = self.answers.setdefault(event.command_id or "", event)
        self.expect(first == event, f"executed twice, or told otherwise: {first}, then {event}")
        elsewhere = command.detail.get(QUEUES) == ELSEWHERE  # who is limited to it can change nothing
        expected = {NOT_ALLOWED, "not_found", "refused"} if elsewhere else OUTCOMES
        self.expect(event.outcome in expected, f"{command}: {event}")
        if event.outcome == "fired":
            self.expect(event.occurrence_id in self.runs, f"{event}, but it did not")

    def _jobs(self, record: MemoryRecord) -> None:
        if record.key()[:2] != b"s/" or record.key()[2:].decode("utf-8", "replace") not in IDS:
            super()._jobs(record)
            return
        id_ = record.key()[2:].decode()
        if record.value() is None:
            self.states.pop(id_, None)
            return
        state = codec.SCHEDULE.decode(record.value() or b"")
        self.states[id_] = self.gone[id_, state.incarnation] = state

    def check_schedules(self) -> None:
        """What the grid of every incarnation fired and skipped is what it enumerates, up to what is decided."""
        for (id_, incarnation), state in self.gone.items():
            prefix = f"s:{id_}:{incarnation}:g::"
            fired = sorted(parse_occurrence(each).nominal_at for each in self.runs if each.startswith(prefix))
            timing = series.timing(state)
            decided = timing.count(state.created_at, state.last_nominal)
            skipped = self.skipped[id_, str(incarnation)]
            about = f"{id_}:{incarnation} fired {len(fired)}, skipped {skipped}, waits {state.buffer} of {decided}"
            self.expect(len(fired) + skipped + len(state.buffer) == decided, about)
            off = [at for at in fired if timing.count(at - 1, at) != 1]
            self.expect(not off, f"{id_} fired off its grid: {off}")
            self.expect(
                state.counts.get("fired", 0) == len(fired), f"{id_}: {state.counts}, {len(fired)} fired"
            )


class ScheduleClients(Clients):
    """Also make and change schedules, and say that their runs have ended."""

    watch: ScheduleWatch

    def _spec(self) -> ScheduleSpec:
        choose = self.random.choice
        id_ = choose(IDS)
        return ScheduleSpec(
            id=id_,
            handler="sim.job",
            payload=self.payload(),
            every_ms={"n0": 5_000, "n1": 1_000, "n2": 60_000, "n3": 7_000}[id_],
            jitter_ms=2_000 if id_ == "n3" else 0,
            misfire=choose(["latest", "none", "all(3)", "all(150)"]),
            misfire_threshold_ms=choose([1, 2_000, 60_000]),
            overlap=choose(
                ["skip", "buffer_one", "buffer_all(3)", "cancel_other", "allow", "allow", "allow"]
            ),
            overlap_timeout_ms=choose([30_000, 86_400_000]),
        )

    def _tell(self, verb: str, **fields: Any) -> None:
        spec = fields.get("spec")
        self._ask(f"schedule.{verb}", schedule_id=spec.id if spec else self.random.choice(IDS), **fields)

    def _home_of(self, command: Command) -> int | None:
        if command.schedule_id is not None:
            return LAYOUT.home_of_name(command.schedule_id)
        return super()._home_of(command)

    def _as_json(self, command: Command) -> bytes:
        plain = json.loads(super()._as_json(replace(command, spec=None)))
        return json.dumps(plain | ({"spec": spec_to_json(command.spec)} if command.spec else {})).encode()

    def make(self) -> None:
        self._tell("create", spec=self._spec())

    def edit(self) -> None:
        self._tell("update", spec=self._spec())

    def pause(self) -> None:
        self._tell("pause", detail={"note": "x"})

    def resume(self) -> None:
        self._tell("resume")

    def trigger(self) -> None:
        self._tell("trigger")

    def backfill(self) -> None:
        end = self.now - 1_000
        overlap = self.random.choice(["allow", "skip", "buffer_all"])
        self._tell("backfill", detail={"from": str(end - 40_000), "to": str(end), "overlap": overlap})

    def delete(self) -> None:
        self._tell("delete")

    def end_one(self) -> None:
        """A worker says that a run has ended its occurrence, or that another one is wanted."""
        running = [o for o, runs in self.watch.runs.items() if len(runs) > self.ended.get(o, 0)]
        if running:
            occurrence = self.random.choice(running[:4] + running[-4:])
            nth = self.ended.get(occurrence, 0)
            self.ended[occurrence] = nth + 1
            number, home = self.watch.runs[occurrence][nth], LAYOUT.home(occurrence)
            if self.random.random() < 0.25:
                run: Run = self._run(
                    occurrence, self.now + self.random.choice([0, 4_000]), run=number + 1, schedule_id="n",
                    nominal_at=parse_occurrence(occurrence).nominal_at,
                )  # fmt: skip
                self.put(home, keys.retry_key(occurrence, number), codec.RUN.encode(run))
            else:
                outcome = self.random.choice(["succeeded", "dead", "cancelled"])
                done = Event(id=occurrence, kind="done", at=self.now, run=number, outcome=outcome)
                self.put(home, keys.done_key(occurrence, number), codec.EVENT.encode(done))


class SchedulePlay(Play):
    weights = WEIGHTS
    watching = ScheduleWatch
    asking = ScheduleClients

    def finish(self) -> None:
        """Nothing of a grid follows once all are paused; what was due before is fired by then."""
        self.world.random.seed(0)
        self.clients.limits = {}
        for n in range(3):  # what is still on its way, a create too, comes first
            self.world.heal()
            for _ in range(40):
                self.world.step_all()
                self.world.clock.advance(100)
            for id_ in IDS if n else ():
                self.clients._ask("schedule.pause", schedule_id=id_)
        super().finish()
        watch = self.watch
        assert isinstance(watch, ScheduleWatch)
        watch.check_schedules()
        watch.check()

    def check_index(self) -> None:
        super().check_index()
        assert isinstance(self.watch, ScheduleWatch)
        stored = {
            entry.record_key[2:].decode(): codec.SCHEDULE.decode(entry.value)
            for process in self.world.dispatchers
            for number in process.live.states
            for entry in process.index.entries(number, b"s/", 10)
            if entry.record_key.startswith(b"s/n")
        }
        assert stored == self.watch.states, f"index {stored}, log {self.watch.states}"


def write(seed: int, events: int = 200) -> Script:
    chance = Random(seed)
    names = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=events)
    return [(name, chance.getrandbits(16)) for name in names]


def failure(seed: int, world: type[World] = World) -> str | None:
    """What goes wrong when the script of this seed is played."""
    play = SchedulePlay(1 + seed % 3, 0, world)
    try:
        for name, salt in write(seed):
            play.happen(name, salt)
        play.finish()
    except Exception as error:  # noqa: BLE001 - whatever the product raises is a finding
        return f"seed {seed}: {type(error).__name__}: {error}"
    return None


__all__ = ["NAMES", "SchedulePlay", "failure", "write"]
