"""The report says what the evidence says: each promise, broken on purpose, is reported as broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline.core.job import AckState
from pipeline.dev.demo.evidence import Created, Emission, End, Evidence, Start
from pipeline.dev.demo.handlers import DUNNING, NIGHT_JOB
from pipeline.dev.demo.inputs import Planned
from pipeline.dev.demo.mailbox import Stopped, Stored
from pipeline.dev.demo.report import Kill, Observed, report

SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / "cli" / "demo.json").read_text())
PID = {"one": 11, "two": 12}
VICTIM = "dunning_invoice_2"
DUE = 1_800_000_000_000
KILLED_AT = DUE + 50


def planned() -> list[Planned]:
    when = datetime(2026, 11, 30, tzinfo=UTC)
    mails = [
        Planned(handler=DUNNING, idempotency_key=f"dunning_invoice_{n}", due=when, payload={"invoice": n})
        for n in (1, 2, 3)
    ]
    return [*mails, Planned(handler=NIGHT_JOB, idempotency_key="night_backup", due=when, payload={})]


def succeeded(occurrence: str, attempt: int, worker: str, result: dict[str, str]) -> End:
    return End(occurrence, 1, attempt, worker, AckState.SUCCEEDED, json.dumps(result).encode())


def good() -> Evidence:
    """Three mails and a night job; worker `one` died over the second mail."""
    keys = ["dunning_invoice_1", VICTIM, "dunning_invoice_3", "night_backup"]
    sent = {"mail": "sent"}
    return Evidence(
        created=[Created(key, NIGHT_JOB if key == "night_backup" else DUNNING) for key in keys],
        emissions=[Emission(f"o{n}", 1, key, DUE, DUE + n) for n, key in enumerate(keys, 1)],
        starts=[
            Start("o1", 1, 1, 100, "two", DUE + 10),
            Start("o2", 1, 1, 101, "one", DUE + 11),
            Start("o3", 1, 1, 102, "two", DUE + 12),
            Start("o4", 1, 1, 103, "one", DUE + 13),
            Start("o2", 1, 2, 201, "two", KILLED_AT + 3_400),
        ],
        ends=[
            succeeded("o1", 1, "two", sent),
            succeeded("o3", 1, "two", sent),
            succeeded("o4", 1, "one", {"command": "backup"}),
            succeeded("o2", 2, "two", {"mail": "stopped", "by": "lookup"}),
        ],
        processes={11: "one", 12: "two"},
        mails=[
            Stored("dunning_invoice_1", 100, 1, "a@example.com"),
            Stored(VICTIM, 101, 2, "b@example.com"),
            Stored("dunning_invoice_3", 102, 3, "c@example.com"),
        ],
        stopped=[Stopped(VICTIM, 201, "lookup")],
    )


OBSERVED = Observed(
    lateness=[4, 5, 6, 7],
    kill=Kill(pid=11, idempotency_key=VICTIM, at=KILLED_AT),
    names={10: "dispatcher", 11: "worker 1", 12: "worker 2"},
)


def judged(
    evidence: Evidence, observed: Observed = OBSERVED, jobs: Sequence[Planned] | None = None
) -> dict[str, Any]:
    found = report(planned() if jobs is None else jobs, evidence, observed)
    surroundings = {
        "store": {"kind": "embedded", "bootstrap": "127.0.0.1:1", "prefix": "demo-0123abcd"},
        "night": {
            "from": "2026-11-29T20:00:00.000Z",
            "to": "2026-11-30T08:00:00.000Z",
            "compressed_to_ms": 1,
        },
        "kept": None,
        "elapsed_ms": 1,
    }
    jsonschema.validate({**found, **surroundings}, SCHEMA)
    return found


def broken(found: Mapping[str, Any]) -> list[str]:
    return [check["name"].split(":")[0] for check in found["invariants"] if not check["holds"]]


# -- figures ------------------------------------------------------------------------------------------------


def test_a_good_night() -> None:
    found = judged(good())
    assert broken(found) == []
    assert found["ok"] is True
    figures = {name: found[name] for name in ("jobs", "runs", "attempts", "restarted_runs", "mails_sent")}
    assert figures == {"jobs": 4, "runs": 4, "attempts": 5, "restarted_runs": 1, "mails_sent": 3}
    assert found["jobs_by_kind"] == {"mails": 3, "night_jobs": 1}
    assert found["duplicates_stopped"] == {"total": 1, "by_lookup": 1, "by_server": 0}
    assert [found[name] for name in ("lost", "doubled", "early", "dead")] == [0, 0, 0, 0]
    assert found["lateness_ms"] == {"min": 4, "p50": 5, "p99": 7, "max": 7}
    assert found["emit_delay_ms"] == {"min": 1, "p50": 2, "p99": 4, "max": 4}


def test_the_story_of_the_kill_is_told_from_the_acks() -> None:
    assert judged(good())["kill"] == {
        "idempotency_key": VICTIM,
        "name": "worker 1",
        "worker": "one",
        "at": "2027-01-15T08:00:00.050Z",
        "takeover_ms": 3_400,
        "attempts": [
            {
                "attempt": 1, "name": "worker 1", "worker": "one", "token": "101", "outcome": "no ack",
                "mail": "sent",
            },
            {
                "attempt": 2, "name": "worker 2", "worker": "two", "token": "201", "outcome": "succeeded",
                "mail": "stopped",
            },
        ],
    }  # fmt: skip


def test_a_worker_that_no_heartbeat_tells_of_has_its_process_id_only() -> None:
    kill = judged(replace(good(), processes={11: "one"}))["kill"]
    assert [attempt["name"] for attempt in kill["attempts"]] == ["worker 1", None]


def test_percentiles_are_measured_values() -> None:
    evidence = good()
    found = judged(evidence, replace(OBSERVED, lateness=list(range(1, 201))))
    assert found["lateness_ms"] == {"min": 1, "p50": 100, "p99": 198, "max": 200}


def test_a_night_in_which_nothing_happened_is_reported_too() -> None:
    found = judged(Evidence(), Observed(lateness=[], kill=None, names={}))
    assert found["ok"] is False
    assert found["lost"] == 4
    assert found["kill"] is None
    assert found["lateness_ms"] == {"min": None, "p50": None, "p99": None, "max": None}


# -- promises, broken one by one
# ------------------------------------------------------------------------------


def change(evidence: Evidence, **lists: Any) -> Evidence:
    return replace(evidence, **lists)


BREAKS: dict[str, Callable[[Evidence], Evidence]] = {
    # a job that was never stored cannot succeed either, but here only its record is missing
    "the topic of jobs holds what the input files say": lambda e: change(e, created=e.created[1:]),
    "nothing is lost": lambda e: change(e, ends=[end for end in e.ends if end.occurrence_id != "o4"]),
    "nothing is doubled": lambda e: change(
        e, emissions=[*e.emissions, e.emissions[0]._replace(occurrence_id="o9")]
    ),
    "nothing is early": lambda e: change(
        e, emissions=[e.emissions[0]._replace(appended_at=DUE - 1), *e.emissions[1:]]
    ),
    "nothing is dead": lambda e: change(e, dead=1),
    "one mail for each invoice": lambda e: change(
        e, mails=[*e.mails, e.mails[0]._replace(idempotency_key="other")]
    ),
    "a worker was killed between effect and ack, another took over": lambda e: change(e, processes={}),
    "the second attempt was a no-op because of the key": lambda e: change(e, stopped=[]),
    "only runs of the killed worker were started again": lambda e: change(
        e, starts=[*e.starts, Start("o1", 1, 2, 300, "one", DUE + 90)]
    ),
    "fencing tokens grow with every attempt": lambda e: change(
        e,
        starts=[*e.starts[:4], e.starts[4]._replace(token=101)],
        stopped=[Stopped(VICTIM, 101, "lookup")],
    ),
}
# One fault may break a second promise that follows from it.
ALONG = {
    "nothing is doubled": ["lateness was measured for every run-1 record"],
    "a worker was killed between effect and ack, another took over": [
        "only runs of the killed worker were started again"
    ],
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_promise_is_reported(name: str) -> None:
    found = judged(BREAKS[name](good()))
    assert broken(found) == [name, *ALONG.get(name, [])]
    assert found["ok"] is False


def test_every_promise_is_broken_above_or_below() -> None:
    names = [check["name"].split(":")[0] for check in judged(good())["invariants"]]
    assert [*BREAKS, "lateness was measured for every run-1 record"] == names


def test_a_record_that_the_waiting_consumer_missed_is_reported() -> None:
    found = judged(good(), replace(OBSERVED, lateness=[4, 5, 6]))
    assert broken(found) == ["lateness was measured for every run-1 record"]


@pytest.mark.parametrize(
    ("field", "keep", "name"),
    [
        ("mails", lambda mail: mail.invoice != 3, "one mail for each invoice"),
        (
            "starts",
            lambda start: start.attempt == 1,
            "a worker was killed between effect and ack, another took over",
        ),
    ],
)
def test_what_is_missing_is_reported(field: str, keep: Callable[[Any], bool], name: str) -> None:
    evidence = good()
    kept = [item for item in getattr(evidence, field) if keep(item)]
    assert name in broken(judged(change(evidence, **{field: kept})))


def test_a_job_that_nobody_planned_is_reported() -> None:
    evidence = good()
    assert broken(
        judged(replace(evidence, created=[*evidence.created, Created("dunning_invoice_4", DUNNING)]))
    ) == ["the topic of jobs holds what the input files say"]


def test_a_second_mail_by_the_second_attempt_is_reported() -> None:
    """What happens when nobody checks the key."""
    evidence = good()
    twice = replace(
        evidence,
        mails=[*evidence.mails, Stored(VICTIM, 201, 2, "b@example.com")],
        ends=[*evidence.ends[:3], succeeded("o2", 2, "two", {"mail": "sent"})],
        stopped=[],
    )
    found = judged(twice)
    assert found["mails_sent"] == 4
    assert broken(found) == [
        "one mail for each invoice",
        "the second attempt was a no-op because of the key",
    ]


def test_a_first_attempt_that_was_acked_is_no_crash() -> None:
    evidence = good()
    ends = [*evidence.ends, succeeded("o2", 1, "one", {"mail": "sent"})]
    assert broken(judged(replace(evidence, ends=ends))) == [
        "a worker was killed between effect and ack, another took over"
    ]


def test_culprits_are_named_but_not_all_of_them() -> None:
    jobs = [*planned(), *(replace(planned()[0], idempotency_key=f"more_{n}") for n in range(9))]
    detail = next(
        c["detail"]
        for c in judged(good(), jobs=jobs)["invariants"]
        if c["name"].startswith("nothing is lost")
    )
    assert detail == "9 lost: more_0, more_1, more_2 …"
