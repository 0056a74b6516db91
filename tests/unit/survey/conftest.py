"""What owners and workers write about some jobs, on a store in memory, with offsets that fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.adapters.memory_scan import MemoryScan
from pipeline.core import keys, offset_metadata
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Ack, AckState, Event, Run
from pipeline.core.keys import LAYOUT_KEY
from pipeline.core.offset_metadata import OffsetMetadata
from pipeline.core.schedule import Schedule
from pipeline.core.token import make_token
from pipeline.ports import CommittedOffset, Put
from pipeline.survey import Filter, Ground, Seen, Window, survey

T0 = 1_800_000_000_000
DUE = T0 + 3_600_000
WORKER = "w1"


class Yard:
    """`work` runs and acks them as the protocol does. Everything is due at DUE plus what a test says."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.offsets: dict[tuple[str, int], tuple[int, int]] = {}
        """Work partition and offset by occurrence and run."""
        for topic, partitions in ((store.names.dead, 2), (store.names.meta, 1)):
            store.cluster.create_topic(topic, partitions)
        self.meta(LAYOUT_KEY, codec.LAYOUT.encode(store.layout))
        store.clock.advance(DUE - store.clock.now())

    def meta(self, key: bytes, value: bytes | None) -> None:
        self.store.cluster.append(Put(self.store.names.meta, 0, key, value))

    @property
    def ground(self) -> Ground:
        return Ground(scan=MemoryScan(self.store.cluster), names=self.store.names, layout=self.store.layout)

    def run(self, n: int = 0, *, after: int = 0, **fields: Any) -> Run:
        id_ = fields.pop("id_", None) or anonymous_id(DUE + after, n)
        values: dict[str, Any] = {
            "job_id": id_,
            "occurrence_id": id_,
            "due_at": DUE + after,
            "run": 1,
            "queue": "default",
            "handler": "email.send",
            "created_at": T0,
            "nominal_at": DUE + after,
            "idempotency_key": id_,
            "payload": b'{"n":1}',
        }
        return Run(**{**values, **fields})

    def again(self, run: Run, **fields: Any) -> Run:
        return replace(run, **{"run": run.run + 1, "due_at": run.due_at + 5_000, **fields})

    def requeued(self, run: Run) -> Run:
        """As `commands.again` makes it now, from what a command says of it."""
        now = self.store.clock.now()
        return replace(run, run=run.run + 1, created_at=now, due_at=now, nominal_at=now)

    def fire(self, run: Run, *, told: bool = True) -> Run:
        """Its work record and, of run 1 if `told`, the tombstone at its home."""
        partition = self.store._work(run)
        key = run.occurrence_id.encode()
        record = self.store.cluster.append(
            Put(self.store.names.work(run.queue), partition, key, codec.RUN.encode(run))
        )
        self.offsets[run.occurrence_id, run.run] = partition, record.offset()
        if told:
            self.store.end(run, "fired", place=f"{run.queue}/{partition}")
        return run

    def ack(
        self, run: Run, state: AckState, *, attempt: int = 1, token: int | None = None, **fields: Any
    ) -> Run:
        partition, offset = self.offsets[run.occurrence_id, run.run]
        token = make_token(1, run.run, 7, attempt) if token is None else token
        values: dict[str, Any] = {
            "job_id": run.job_id,
            "occurrence_id": run.occurrence_id,
            "run": run.run,
            "attempt": attempt,
            "token": token,
            "worker": WORKER,
            "handler": run.handler,
            "state": state,
            "at": self.store.clock.now(),
            "work_offset": offset,
        }
        ack = Ack(**{**values, **fields})
        key = (
            keys.terminal_key(run.occurrence_id, run.run, attempt)
            if state.terminal
            else keys.started_key(run.occurrence_id, run.run, token)
        )
        topic = self.store.names.acks(run.queue)
        self.store.cluster.append(Put(topic, partition, key, codec.ACK.encode(ack)))
        return run

    def commit(self, partition: int, mark: int, **metadata: Any) -> None:
        names = self.store.names
        group = self.store.cluster.group(names.worker_group("default"), names.work("default"))
        text = offset_metadata.encode(mark, OffsetMetadata(**metadata))
        group.committed[partition] = CommittedOffset(mark, text)

    def commit_all(self) -> None:
        for partition in range(3):
            self.commit(
                partition, self.store.cluster.partition(self.store.names.work("default"), partition).end
            )

    def skip(self, **detail: str) -> None:
        """An event of the schedule `nightly`."""
        schedule = "nightly"
        home = self.store.layout.home_of_name(schedule)
        full = {"schedule": schedule, "incarnation": "5", "kind": "g", **detail}
        event = Event(
            id=f"s/{schedule}", kind="skipped", at=self.store.clock.now(), reason="misfire", detail=full
        )
        names = self.store.names
        self.store.cluster.append(Put(names.events, home, schedule.encode(), codec.EVENT.encode(event)))

    def put_schedule(self, state: Schedule) -> None:
        home = self.store.layout.home_of_name(state.spec.id)
        value = codec.SCHEDULE.encode(state)
        self.store.cluster.append(Put(self.store.names.jobs, home, keys.schedule_key(state.spec.id), value))

    def seen(self, window: Window | None = None, **wanted: Any) -> list[Seen]:
        return sorted(survey(self.ground, window or HOUR, Filter(**wanted)))

    def states(self, window: Window | None = None, **wanted: Any) -> dict[str, str]:
        return {seen.occurrence_id: seen.state.value for seen in self.seen(window, **wanted)}


HOUR = Window(from_ms=DUE, to_ms=DUE + 3_600_000)


@pytest.fixture
def yard(store: Any) -> Yard:
    return Yard(store)
