"""`dueline job cancel`, `reschedule`, `update`, `requeue`, `why` and jobs with a key, over a store in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState, Failure, Owned

ANON = "j" + "0" * 26
DUE_MS = "1800000600000"
DUE = "2027-01-15T08:10:00.000Z"


def answering(store: Any, outcome: str, **fields: Any) -> None:
    store.owner = lambda command: {"outcome": outcome, "job_id": command.job_id, **fields}


# -- create with a key --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "code"),
    [("created", 0), ("existing", 0), ("replaced", 0), ("debounced", 0), ("rejected", 4)],
)
def test_a_key_is_answered_by_its_owner(dueline: Any, store: Any, outcome: str, code: int) -> None:
    answering(store, outcome, detail={"due_at": DUE_MS})
    words = ("--key", "invoice-55", "--unique", "10m", "--on-conflict", "replace", "--spread", "0s")
    ran = dueline("job", "create", "h", "--in", "1h", *words, "--json")
    assert ran.code == code
    assert ran.json("job_create") == {"id": keyed_id("invoice-55"), "status": outcome, "due_at": DUE}
    (command,) = store.commands
    assert (command.key, command.unique, command.on_conflict) == ("invoice-55", "600000ms", "replace")


def test_a_key_without_an_owner_is_accepted(dueline: Any, store: Any) -> None:
    ran = dueline("job", "create", "h", "--in", "10m", "--key", "k", "--wait", "20ms", "--json")
    assert ran.code == 0
    assert ran.json("job_create") == {"id": keyed_id("k"), "status": "accepted", "due_at": DUE}


def test_what_the_owner_refuses_is_invalid_input(dueline: Any, store: Any) -> None:
    answering(store, "refused", reason="payload: is longer than 10 bytes")
    ran = dueline("job", "create", "h", "--now", "--key", "k")
    assert (ran.code, ran.out, ran.err) == (2, "", "dueline: --payload: is longer than 10 bytes\n")


def test_a_spread_puts_off(dueline: Any, store: Any) -> None:
    words = ("--at", "2027-01-15T08:10:00Z", "--spread", "30s", "--idempotency-key", "i", "--json")
    first, again = (dueline("job", "create", "h", *words).json("job_create") for _ in range(2))
    assert DUE <= first["due_at"] <= "2027-01-15T08:10:30.000Z"
    assert first["due_at"] == again["due_at"]
    assert {run.nominal_at for run in store.runs()} == {int(DUE_MS)}


def test_lines_of_a_file_may_have_keys(dueline: Any, store: Any, tmp_path: Path) -> None:
    lines = [
        {"handler": "h", "in": "1s"},
        {"handler": "h", "in": "1s", "key": "a", "unique": "started", "on_conflict": "reject"},
        {"handler": "h", "at": "2030-01-01T00:00:00Z", "key": "b", "spread": "1m"},
    ]
    file = tmp_path / "jobs.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ran = dueline("job", "create", "--file", str(file), "--json")
    assert (ran.code, ran.json("job_create_file")) == (0, {"accepted": 3})
    assert [(command.key, command.unique) for command in store.commands] == [("a", "started"), ("b", None)]


# -- cancel -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "outcome", "code"),
    [
        ("cancelled", "cancelled", 0),
        ("stopped", "stopped", 0),
        ("fired", "too_late", 4),
        ("not_found", "not_found", 3),
        ("parked", "unknown", 1),
    ],
)
def test_cancel_has_an_exit_code_for_each_outcome(
    dueline: Any, store: Any, answer: str, outcome: str, code: int
) -> None:
    answering(store, answer)
    ran = dueline("job", "cancel", ANON, "--json")
    assert (ran.code, ran.json("job_cancel")) == (code, {"id": ANON, "outcome": outcome})
    assert dueline("job", "cancel", ANON).out == f"{outcome} {ANON}\n"


def test_cancel_without_an_answer_is_unknown(dueline: Any) -> None:
    ran = dueline("job", "cancel", ANON, "--wait", "20ms", "--json")
    assert (ran.code, ran.json("job_cancel")["outcome"]) == (1, "unknown")


@pytest.mark.parametrize(
    ("state", "outcome", "code"),
    [(None, "stopping", 0), (AckState.CANCELLED, "stopped", 0), (AckState.SUCCEEDED, "too_late", 4)],
)
def test_a_run_that_fired_is_stopped(
    dueline: Any, store: Any, state: AckState | None, outcome: str, code: int
) -> None:
    dueline("job", "create", "h", "--now")
    (run,) = store.runs()
    store.fire(run)
    if state is not None:
        store.ack(run, state, error=Failure(type="Stopped", message=""))
    answering(store, "stopping")
    wait = "2s" if state is None else "30s"  # also for the end of the run, which does not always come
    ran = dueline("job", "cancel", run.job_id, "--stop", "--wait", wait, "--json")
    assert (ran.code, ran.json("job_cancel")) == (code, {"id": run.job_id, "outcome": outcome})
    assert [command.verb for command in store.commands] == ["stop"]


@pytest.mark.parametrize("verb", ["cancel", "reschedule", "update", "requeue", "why"])
def test_a_malformed_id_is_invalid_input(dueline: Any, store: Any, verb: str) -> None:
    words = {"reschedule": ("--now",), "update": ("--payload", "{}")}.get(verb, ())
    ran = dueline("job", verb, "nonsense", *words)
    assert (ran.code, ran.out, store.jobs()) == (2, "", [])
    assert ran.err.count("\n") == 1
    assert "'nonsense' is no job or occurrence id" in ran.err


@pytest.mark.parametrize("verb", ["cancel", "requeue", "why"])
def test_an_unreachable_store_is_exit_code_5(dueline: Any, store: Any, verb: str) -> None:
    store.cluster.reachable = False
    ran = dueline("job", verb, ANON)
    assert (ran.code, ran.out) == (5, "")


# -- reschedule and update ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "due_at"),
    [
        (("--at", "2027-01-15T09:10:00+01:00"), int(DUE_MS)),
        (("--in", "10m"), int(DUE_MS)),
        (("--now",), int(DUE_MS) - 600_000),
    ],
)
def test_reschedule_names_an_instant(dueline: Any, store: Any, words: tuple[str, ...], due_at: int) -> None:
    answering(store, "rescheduled", detail={"due_at": DUE_MS})
    ran = dueline("job", "reschedule", ANON, *words, "--json")
    assert ran.code == 0
    assert ran.json("job_reschedule") == {"id": ANON, "outcome": "rescheduled", "due_at": DUE}
    (command,) = store.commands
    assert (command.verb, command.job_id, command.due_at) == ("reschedule", ANON, due_at)
    assert dueline("job", "reschedule", ANON, *words).out == f"rescheduled {ANON}, due {DUE}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "exactly one of --at, --in, --now"),
        (("--at", "2030-01-01T00:00:00Z", "--now"), "exactly one of --at, --in, --now"),
        (("--in", "1s", "--now"), "exactly one of --at, --in, --now"),
        (("--at", "2030-01-01T00:00:00"), "--at"),
        (("--in", "10"), "--in"),
        (("--now", "--wait", "x"), "--wait"),
    ],
)
def test_a_bad_reschedule_asks_nothing(dueline: Any, store: Any, words: tuple[str, ...], told: str) -> None:
    ran = dueline("job", "reschedule", ANON, *words)
    assert (ran.code, ran.out, store.commands) == (2, "", [])
    assert told in ran.err


@pytest.mark.parametrize("verb", ["reschedule", "update"])
@pytest.mark.parametrize(
    ("answer", "outcome", "code"),
    [
        ("fired", "too_late", 4),
        ("cancelled", "cancelled", 4),
        ("stopped", "stopped", 4),
        ("not_found", "not_found", 3),
        ("parked", "unknown", 1),
    ],
)
def test_what_could_not_be_changed(
    dueline: Any, store: Any, verb: str, answer: str, outcome: str, code: int
) -> None:
    answering(store, answer)
    words = ("--now",) if verb == "reschedule" else ("--payload", "{}")
    ran = dueline("job", verb, ANON, *words, "--json")
    assert (ran.code, ran.json(f"job_{verb}")["outcome"]) == (code, outcome)


def test_update_replaces_the_payload(dueline: Any, store: Any) -> None:
    answering(store, "updated")
    ran = dueline("job", "update", ANON, "--payload", "-", "--json", stdin='{"n": 2}')
    assert (ran.code, ran.json("job_update")) == (0, {"id": ANON, "outcome": "updated"})
    assert store.commands[0].payload == b'{"n":2}'
    for wrong in ("[]", "{", '{"a": 1, "a": 2}'):
        ran = dueline("job", "update", ANON, "--payload", wrong)
        assert (ran.code, ran.err.startswith("dueline: --payload: ")) == (2, True)
    assert dueline("job", "update", ANON).code == 2
    assert len(store.commands) == 1


# -- requeue ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "code"), [("requeued", 0), ("brought_forward", 0), ("pending", 4), ("parked", 1)]
)
def test_requeue_asks_for_a_further_run(dueline: Any, store: Any, outcome: str, code: int) -> None:
    dueline("job", "create", "h", "--now")
    (run,) = store.runs()
    store.fire(run)
    store.ack(run, AckState.DEAD)
    answering(store, outcome, run=2 if outcome == "requeued" else None, detail={"due_at": DUE_MS})
    ran = dueline("job", "requeue", run.job_id, "--json")
    assert ran.code == code
    assert ran.json("job_requeue") == {
        "id": run.job_id,
        "outcome": "unknown" if outcome == "parked" else outcome,
        "run": 2 if outcome == "requeued" else None,
        "due_at": DUE,
    }


def test_requeue_of_nothing_is_not_found(dueline: Any, store: Any) -> None:
    ran = dueline("job", "requeue", ANON, "--json")
    assert (ran.code, ran.json("job_requeue")["outcome"]) == (3, "not_found")


# -- why and list -------------------------------------------------------------------------------------------


def test_why_is_one_sentence(dueline: Any, store: Any) -> None:
    dueline("job", "create", "h", "--in", "10m")
    (run,) = store.runs()
    owned = (Owned(topic=store.names.jobs, partition=store.layout.home(run.job_id), state="running"),)
    store.beat("d1", role="dispatcher", owned=owned)
    sentence = f"it waits for its time, {DUE}, in 10 min"
    ran = dueline("job", "why", run.job_id, "--json")
    assert ran.json("job_why") == {
        "id": run.job_id,
        "status": "pending",
        "waits_for": "time",
        "sentence": sentence,
    }
    assert dueline("job", "why", run.job_id).out == f"{run.job_id}: {sentence}\n"


def test_why_of_every_kind_has_the_schema(dueline: Any, store: Any) -> None:
    answering(store, "created")
    store.owner = lambda _: None
    dueline("job", "create", "h", "--now", "--key", "k", "--wait", "1ms")
    assert dueline("job", "why", keyed_id("k"), "--json").json("job_why")["waits_for"] == "owner"
    dueline("job", "create", "h", "--now")
    (run,) = [run for run in map(_run, store.jobs()) if run is not None]
    seen = [dueline("job", "why", run.job_id, "--json").json("job_why")["waits_for"]]
    store.fire(run)
    seen.append(dueline("job", "why", run.job_id, "--json").json("job_why")["waits_for"])
    store.beat("w1", queues=("default",))
    seen.append(dueline("job", "why", run.job_id, "--json").json("job_why")["waits_for"])
    store.ack(run, AckState.STARTED)
    seen.append(dueline("job", "why", run.job_id, "--json").json("job_why")["waits_for"])
    store.beat("w1")
    seen.append(dueline("job", "why", run.job_id, "--json").json("job_why")["waits_for"])
    store.ack(run, AckState.SUCCEEDED)
    seen.append(dueline("job", "why", run.job_id, "--json").json("job_why")["waits_for"])
    assert seen == ["owner", "worker", "handler", "attempt", "attempt", None]


def _run(record: Any) -> Any:
    from pipeline import codec

    return codec.RUN.decode(record.value()) if record.key().startswith(b"j/") else None


def test_why_of_no_job_is_not_found(dueline: Any) -> None:
    ran = dueline("job", "why", ANON, "--json")
    assert (ran.code, ran.out) == (3, "")
    assert "nothing is stored" in ran.err


def test_help_tells_every_verb(dueline: Any) -> None:
    told = dueline("job", "--help").out
    for verb in ("create", "get", "list", "why", "cancel", "reschedule", "update", "requeue"):
        assert f"\n  {verb} " in told
