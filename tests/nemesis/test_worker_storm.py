"""A short storm of workers on each kind of database, from a fixed seed, and the same storm without a sink, which must
be caught; then everything that was dead is requeued.

By hand and for longer: `PYTHONPATH=tests python -m nemesis.worker_storm --help`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration.postgres import running_postgres
from nemesis import storm_wire as wire
from nemesis.storm_check import Row
from nemesis.worker_check import Check, Expected, Facts
from nemesis.worker_faults import Life
from nemesis.worker_storm import Storm, play

SECONDS = 28
FREEZES = 12
"""Without the sink an effect must show twice within so many."""


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "effects.db")
        return
    with running_postgres() as dsn:
        yield dsn


@pytest.mark.timeout(240)
def test_after_a_storm_every_job_has_one_outcome_and_one_effect_and_so_again_when_the_dead_are_requeued(
    broker: str, store: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    seen = play(broker, tmp_path / "home", store, seed=7, seconds=SECONDS)
    report(seen.line())
    assert not seen.wrong
    assert not seen.verdict.found, {kind: found[:5] for kind, found in seen.verdict.found.items()}
    assert seen.again is not None
    assert not seen.again.found, {kind: found[:5] for kind, found in seen.again.found.items()}
    assert seen.verdict.states.keys() == {"succeeded", "dead"}
    assert sum(seen.faults.values()) >= 6
    assert seen.verdict.again > 0, "nothing was started anew: what was struck had nothing in hand"


@pytest.mark.timeout(240)
def test_without_the_sink_a_frozen_worker_that_thaws_doubles_effects_and_with_it_is_refused(
    broker: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    def doubled(storm: Storm) -> bool:
        keys = [key for key, *_ in storm.effects.rows("effects")]
        return len(keys) > len(set(keys)) or _freezes(storm) >= FREEZES

    def refused(storm: Storm) -> bool:
        return bool(storm.effects.rows("refused")) or _freezes(storm) >= FREEZES

    def freeze(name: str, *, guarded: bool, enough: Callable[[Storm], bool]) -> Any:
        home, store = tmp_path / name, str(tmp_path / f"{name}.db")
        seen = play(
            broker, home, store, seed=8, seconds=70, pace=6, faults={"freeze long": 1}, guarded=guarded,
            failing=False, enough=enough,
        )  # fmt: skip
        report(f"{name:<12} {seen.line()}")
        return seen

    plain = freeze("without sink", guarded=False, enough=doubled)
    assert "effect doubled" in plain.verdict.found
    assert plain.verdict.again > 0
    assert plain.verdict.found.keys() <= {"effect doubled", "token"}
    guarded = freeze("with it", guarded=True, enough=refused)
    assert guarded.verdict.refused > 0
    assert not guarded.verdict.found


def _freezes(storm: Storm) -> int:
    return sum(len(life.freezes) for life in storm.lives)


# -- the check itself ---------------------------------------------------------------------------------------

ID = "j01m8nf89tsggzy22kfqzk6pt33"
AT = 1_800_000_000_000
PID = 77


def work(run: int = 1, handler: str = "storm.thread", occurrence: str = ID, payload: bytes = b"{}") -> Row:
    value = {"job_id": occurrence, "occurrence_id": occurrence, "due_at": AT, "run": run, "queue": "default"}
    value |= {"handler": handler, "created_at": AT, "nominal_at": AT, "idempotency_key": occurrence}
    return Row(0, run, occurrence, wire.write("run", value | {"payload": payload}), AT, {})


def ack(
    state: str, *, run: int = 1, token: int = 5, attempt: int = 1, kind: str = "t", at: int = AT + 100
) -> Row:
    value = {"job_id": ID, "occurrence_id": ID, "run": run, "attempt": attempt, "token": token, "worker": "w"}
    value |= {"handler": "storm.thread", "state": state, "at": at, "work_offset": run}
    last = attempt if kind == "t" else token
    return Row(0, run * 10 + attempt, f"{kind}/{ID}/{run}/{last}", wire.write("ack", value), at, {})


def start(token: int = 5, *, run: int = 1, at: int = AT + 10) -> tuple[str, int, int, int, int]:
    return ID, run, token, PID, at


GOOD = Facts(
    work=[work(1), work(2)],
    acks=[ack("retrying", token=5), ack("succeeded", run=2, token=9)],
    starts=[start(5), start(9, run=2)],
    refused=[],
    effects=[(ID, 9, PID, AT)],
    written=[(ID, 5), (ID, 9)],
)

CHILD = work(1, "storm.child", ID[:-1] + "4", b'{"parent": "%s"}' % ID.encode())


def found(tmp_path: Path, facts: Facts, life: Life | None = None, state: str = "succeeded") -> set[str]:
    log = tmp_path / "log"
    log.write_text("")
    lives = [life or Life(PID, log)]
    return set(Check(facts, {ID: Expected(state, 1)}, lives).run().found)


def test_the_check_is_content_with_a_retry_that_succeeds(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD) == set()


@pytest.mark.parametrize(
    ("wrong", "changes"),
    [
        ("doubled", {"work": [*GOOD.work, work(2)]}),
        ("lost", {"acks": GOOD.acks[:1]}),
        ("outcome", {"acks": [GOOD.acks[0], ack("dead", run=2, token=9)]}),
        ("acked twice", {"acks": [*GOOD.acks, ack("succeeded", run=2, token=10, attempt=2)]}),
        ("started after its ack", {"acks": [*GOOD.acks, ack("started", token=12, kind="s", run=2)]}),
        ("started after its ack", {"starts": [*GOOD.starts, start(12, run=2, at=AT + 900)]}),
        ("restarted", {"starts": [*GOOD.starts, start(8, run=2)]}),
        ("restarted", {"starts": [*GOOD.starts, start(9, run=2)]}),
        ("odd", {"starts": GOOD.starts[:1]}),
        ("effect doubled", {"effects": GOOD.effects * 2}),
        ("effect lost", {"effects": []}),
        ("token", {"written": [(ID, 9), (ID, 5)]}),
        ("token", {"acks": [GOOD.acks[0], ack("succeeded", run=2, token=4)], "starts": [start(5), start(4, run=2)]}),
        ("children", {"work": [*GOOD.work, CHILD]}),
    ],
)  # fmt: skip
def test_the_check_finds(tmp_path: Path, wrong: str, changes: dict[str, Any]) -> None:
    assert wrong in found(tmp_path, replace(GOOD, **changes))


def test_a_run_started_anew_is_only_well_if_its_worker_was_struck(tmp_path: Path) -> None:
    twice = replace(GOOD, starts=[*GOOD.starts, start(8, run=2)])
    log = tmp_path / "log"
    assert found(tmp_path, twice, Life(PID, log, killed_at=AT + 20)) == set()
    assert found(tmp_path, twice, Life(PID, log, freezes=[(AT + 20, AT + 9_000)])) == set()
    assert found(tmp_path, twice, Life(PID, log, freezes=[(AT + 20, AT + 60)])) == {"restarted"}
    assert found(tmp_path, twice, Life(PID, log, asked_at=AT + 20)) == {"restarted"}, (
        "SIGTERM costs no attempt"
    )
