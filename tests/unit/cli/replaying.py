"""What the tests of `dueline replay` share: jobs that fired, records of replays, and an owner that emits."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipeline import codec
from pipeline.core.ids import anonymous_id
from pipeline.core.job import AckState, Command, Run
from pipeline.core.times import format_instant
from pipeline.portion import REPLAY_HEADER
from pipeline.ports import Put
from pipeline.replay.record import Replay, ReplayState, to_event
from pipeline.replay.runner import Runner
from pipeline.survey import Filter, State, Window

T0 = 1_800_000_000_000
FROM = format_instant(T0 - 3_600_000)
TO = format_instant(T0 + 60_000)
ELSEWHERE = Runner(host="elsewhere", pid=7, place="boot/1", nonce="n1")


class Owner:
    """Emits and answers as the owners do; `asked` is how often it was asked for each occurrence."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.runs: dict[str, int] = {}
        self.asked: Counter[str] = Counter()
        self.commands: list[Command] = []
        self.silent = False
        store.owner = self

    def __call__(self, command: Command) -> Mapping[str, Any] | None:
        self.commands.append(command)
        if self.silent:
            return None
        batch = codec.REPLAY_BATCH.decode(command.payload or b"")
        counts: Counter[str] = Counter()
        for value in batch.runs:
            run = codec.RUN.decode(value)
            self.asked[run.occurrence_id] += 1
            if self.runs.get(run.occurrence_id, run.run) > run.run:
                counts["superseded"] += 1
                continue
            counts["replayed"] += 1
            self.runs[run.occurrence_id] = run.run + 1
            headers = {**run.headers, REPLAY_HEADER: command.detail["replay"]}
            self.store.fire(replace(run, run=run.run + 1, headers=headers))
        told = {name: str(n) for name, n in counts.items()}
        return {"outcome": "replayed", "detail": {**command.detail, "verb": "replay", **told}}


def fired(store: Any, n: int, state: AckState | None = None, **fields: Any) -> Run:
    """A job that fired a minute ago, and how it ended."""
    id_ = anonymous_id(T0 - 60_000, n)
    run = Run(
        job_id=id_,
        occurrence_id=id_,
        due_at=T0 - 60_000,
        run=1,
        queue="default",
        handler="mail",
        created_at=T0 - 90_000,
        nominal_at=T0 - 60_000,
        idempotency_key=id_,
        payload=b"{}",
    )
    run = replace(run, **fields)
    store.fire(run)
    if state is not None:
        at = store.cluster.partition(store.names.work("default"), store._work(run)).end - 1
        store.ack(run, state, work_offset=at)
    return run


def counts(answer: Any) -> dict[str, int]:
    return {name: n for name, n in answer["counts"].items() if n}


def window(*more: str) -> tuple[str, ...]:
    return ("replay", "--from", FROM, "--json", *more)


def record(store: Any, **fields: Any) -> Replay:
    """One that stands on `meta`, as its process left it."""
    values = {
        "state": ReplayState.RUNNING,
        "window": Window(from_ms=T0 - 3_600_000, to_ms=T0 + 60_000),
        "wanted": Filter(outcomes=frozenset({State.FAILED})),
        "requested_by": "ada@engine",
        "created_at": store.clock.now(),
        "updated_at": store.clock.now(),
        "matched": 7,
        **fields,
    }
    found = Replay(id=str(uuid.uuid4()), **values)
    store.cluster.append(
        Put(store.names.meta, 0, f"replay/{found.id}/0".encode(), codec.EVENT.encode(to_event(found)))
    )
    return found
