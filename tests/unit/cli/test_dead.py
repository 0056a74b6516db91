"""`dueline dead`, over a store in memory whose owner answers what the test wants."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import codec
from pipeline.client import dead as client_dead
from pipeline.core.ids import anonymous_id, keyed_id
from pipeline.core.job import Command, DeadLetter, Run
from pipeline.ports import Put

T0 = 1_800_000_000_000


@pytest.fixture(autouse=True)
def dead_topic(store: Any) -> None:
    store.cluster.create_topic(store.names.dead, 4)


def dead(store: Any, n: int, **fields: Any) -> Run:
    id_ = anonymous_id(T0, n)
    run = Run(
        job_id=id_,
        occurrence_id=id_,
        due_at=T0,
        run=3,
        queue="default",
        handler="h",
        created_at=T0,
        nominal_at=T0,
        idempotency_key="i",
        payload=b'{"to":"a@b"}',
        labels={"l": "1"},
    )
    run = replace(run, **{name: value for name, value in fields.items() if hasattr(run, name)})
    letter(store, run, fields.get("reason", "max_attempts"), T0 + n)
    return run


def letter(store: Any, run: Run | None, reason: str, at: int, value: bytes | None = None) -> None:
    record = DeadLetter(
        reason=reason,
        detail="no\nmore",
        at=at,
        source_topic="t",
        source_partition=0,
        source_offset=at % 1000,
        run=run,
        value=value,
    )
    key = b"t/0/0" if run is None else run.occurrence_id.encode()
    store.cluster.append(Put(store.names.dead, 1, key, codec.DEAD_LETTER.encode(record)))


def answering(store: Any, *outcomes: str, **fields: Any) -> None:
    words = iter(outcomes)
    store.owner = lambda command: {"outcome": next(words), "job_id": command.job_id, **fields}


# -- list ---------------------------------------------------------------------------------------------------


def test_a_list_is_one_object_a_line_the_latest_first(dueline: Any, store: Any) -> None:
    first, second = dead(store, 1), dead(store, 2, handler="bill")
    letter(store, None, "undecodable", T0, b"\x00")
    ran = dueline("dead", "list", "--json")
    assert ran.code == 0
    views = ran.lines("dead_list")
    assert [view["id"] for view in views] == [second.job_id, first.job_id, None]
    assert ["payload" in view for view in views] == [False] * 3
    (view,) = dueline("dead", "list", "--limit", "1", "--payload", "--json").lines("dead_list")
    assert (view["id"], view["payload"]) == (second.job_id, {"to": "a@b"})
    (view,) = dueline("dead", "list", "--handler", "h", "--json").lines("dead_list")
    assert view["id"] == first.job_id
    (view,) = dueline("dead", "list", "--reason", "undecodable", "--json").lines("dead_list")
    assert view["handler"] is None
    since = ("--since", "2027-01-15T08:00:00.002Z")
    assert len(dueline("dead", "list", *since, "--json").lines("dead_list")) == 1


def test_a_list_for_people_has_one_line_each(dueline: Any, store: Any) -> None:
    run = dead(store, 0)
    letter(store, None, "undecodable", T0 - 1, b"\x00")
    lines = dueline("dead", "list").out.splitlines()
    assert lines[0] == f"{run.job_id}  2027-01-15T08:00:00.000Z  h, run 3  max_attempts: no more"
    assert lines[1] == "t/0/999  2027-01-15T07:59:59.999Z  unreadable  undecodable: no more"


def test_an_empty_list_says_so(dueline: Any) -> None:
    ran = dueline("dead", "list", "--json")
    assert (ran.code, ran.out, ran.err) == (0, "", "dueline: no dead letter matches\n")


@pytest.mark.parametrize("words", [("--since", "yesterday"), ("--limit", "0")])
def test_a_bad_list_is_refused(dueline: Any, words: tuple[str, ...]) -> None:
    ran = dueline("dead", "list", *words)
    assert (ran.code, ran.out) == (2, "")
    assert words[0] in ran.err


# -- groups -------------------------------------------------------------------------------------------------


def test_those_that_are_alike_are_counted_the_largest_group_first(dueline: Any, store: Any) -> None:
    for n, handler in enumerate(("bill", "h", "h")):
        last = dead(store, n, handler=handler)
    letter(store, None, "undecodable", T0 - 1, b"\x00")
    largest, bill, odd = dueline("dead", "groups", "--json").lines("dead_groups")
    assert largest == {
        "group": largest["group"],
        "handler": "h",
        "reason": "max_attempts",
        "error": None,
        "message": "no",
        "count": 2,
        "oldest": "2027-01-15T08:00:00.001Z",
        "newest": "2027-01-15T08:00:00.002Z",
        "example": last.job_id,
    }
    assert (bill["handler"], bill["count"], odd["handler"], odd["example"]) == ("bill", 1, None, None)
    (one,) = dueline("dead", "groups", "--limit", "1", "--handler", "h", "--json").lines("dead_groups")
    assert one == largest
    lines = dueline("dead", "groups").out.splitlines()
    assert lines[0].split() == ["COUNT", "GROUP", "HANDLER", "REASON", "ERROR", "OLDEST", "NEWEST", "EXAMPLE"]
    assert lines[1].split()[:5] == ["2", largest["group"], "h", "max_attempts", "no"]
    listed = dueline("dead", "list", "--group", largest["group"], "--json").lines("dead_list")
    assert [view["id"] for view in listed] == [last.job_id, anonymous_id(T0, 1)]


def test_a_group_is_requeued_and_no_other(dueline: Any, store: Any) -> None:
    wanted, _ = dead(store, 1, reason="timeout"), dead(store, 2)
    (group,) = dueline("dead", "groups", "--reason", "timeout", "--json").lines("dead_groups")
    answering(store, "requeued")
    ran = dueline("dead", "requeue", "--group", group["group"], "--json")
    assert (ran.code, ran.json("dead_requeue")) == (0, counted(matched=1, requeued=1))
    assert [command.job_id for command in store.commands] == [wanted.job_id]


def test_no_groups_are_told_of(dueline: Any) -> None:
    ran = dueline("dead", "groups", "--json")
    assert (ran.code, ran.out, ran.err) == (0, "", "dueline: no dead letter matches\n")


# -- requeue ------------------------------------------------------------------------------------------------


def counted(**counts: int) -> dict[str, Any]:
    names = (
        *("requeued", "brought_forward", "superseded", "pending", "cancelled", "stopped"),
        *("refused", "not_found", "unknown", "unreadable"),
    )
    return {"dry_run": False, "matched": 0, **dict.fromkeys(names, 0), **counts}


def test_one_job_is_requeued_as_it_was(dueline: Any, store: Any) -> None:
    run = dead(store, 1)
    dead(store, 2)
    answering(store, "requeued", run=4)
    ran = dueline("dead", "requeue", run.job_id, "--json")
    assert (ran.code, ran.json("dead_requeue")) == (0, counted(matched=1, requeued=1))
    (command,) = store.commands
    assert (command.verb, command.job_id, command.seen_run) == ("requeue", run.occurrence_id, 3)
    assert command.on_conflict == "reject", "asked twice, it runs once"
    assert (command.handler, command.queue, command.payload) == ("h", "default", b'{"to":"a@b"}')
    assert (command.idempotency_key, dict(command.labels)) == ("i", {"l": "1"})
    answering(store, "requeued")
    assert dueline("dead", "requeue", run.job_id).out == "1 of 1 requeued\n"


def test_many_are_requeued_by_filter_with_another_payload(dueline: Any, store: Any) -> None:
    wanted = [dead(store, n, reason="invalid_payload") for n in range(300)]
    dead(store, 900)
    dead(store, 901, reason="invalid_payload", handler="bill")
    answering(store, *["requeued"] * 300)
    words = ("--reason", "invalid_payload", "--handler", "h", "--payload", "-")
    ran = dueline("dead", "requeue", *words, "--json", stdin='{"to": "c@d"}')
    assert (ran.code, ran.json("dead_requeue")) == (0, counted(matched=300, requeued=300))
    assert {command.job_id for command in store.commands} == {run.job_id for run in wanted}
    assert {command.payload for command in store.commands} == {b'{"to":"c@d"}'}


def test_a_dry_run_asks_nothing(dueline: Any, store: Any) -> None:
    dead(store, 1)
    letter(store, None, "undecodable", T0, b"\x00")
    ran = dueline("dead", "requeue", "--all", "--dry-run", "--json")
    assert ran.json("dead_requeue") == counted(matched=2, unreadable=1) | {"dry_run": True}
    assert (ran.code, store.commands) == (0, [])


@pytest.mark.parametrize(
    ("answer", "outcome", "code"),
    [
        ("brought_forward", "brought_forward", 0),
        ("superseded", "superseded", 4),
        ("pending", "pending", 4),
        ("refused", "refused", 4),
        ("not_found", "not_found", 3),
        ("parked", "unknown", 1),
    ],
)
def test_every_outcome_is_counted_and_has_its_exit_code(
    dueline: Any, store: Any, answer: str, outcome: str, code: int
) -> None:
    dead(store, 1)
    dead(store, 2)
    answering(store, "requeued", answer, reason="queue: 'x' is unknown")
    ran = dueline("dead", "requeue", "--all", "--json")
    counts = {"matched": 2, "requeued": 1}
    assert (ran.code, ran.json("dead_requeue")) == (code, counted(**{**counts, outcome: 1}))
    assert ("'x' is unknown" in ran.err) == (answer == "refused")


def test_without_an_owner_it_is_unknown(dueline: Any, store: Any) -> None:
    dead(store, 1)
    ran = dueline("dead", "requeue", "--all", "--wait", "20ms", "--json")
    assert (ran.code, ran.json("dead_requeue")) == (1, counted(matched=1, unknown=1))


def test_a_letter_that_no_owner_could_take_is_refused_and_harms_no_other(dueline: Any, store: Any) -> None:
    dead(store, 1, job_id="nonsense", occurrence_id="nonsense")
    dead(store, 2)
    answering(store, "requeued")
    ran = dueline("dead", "requeue", "--all", "--json")
    assert (ran.code, ran.json("dead_requeue")) == (4, counted(matched=2, requeued=1, refused=1))


def test_an_id_without_a_letter_is_not_found(dueline: Any, store: Any) -> None:
    ran = dueline("dead", "requeue", anonymous_id(T0, 7), "--json")
    assert (ran.code, ran.json("dead_requeue")) == (3, counted(not_found=1))


def test_of_a_key_the_incarnation_that_died_last_is_requeued(dueline: Any, store: Any) -> None:
    id_ = keyed_id("k")
    for n in (1, 2):
        dead(store, n, job_id=id_, occurrence_id=f"{id_}.{n}", key="k")
    asked: list[str | None] = []

    def owner(command: Command) -> dict[str, Any]:
        asked.append(command.job_id)
        return {"outcome": "requeued"}

    store.owner = owner
    assert dueline("dead", "requeue", id_, "--json").json("dead_requeue")["requeued"] == 1
    assert dueline("dead", "requeue", f"{id_}.1", "--json").json("dead_requeue")["requeued"] == 1
    assert asked == [f"{id_}.2", f"{id_}.1"]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--all", "--handler", "h"),
        ("j" + "0" * 26, "--all"),
        ("--all", "--payload", "[]"),
        ("--all", "--payload", "null"),
        ("--all", "--payload", "{"),
        ("--all", "--rate", "0"),
        ("--all", "--wait", "soon"),
    ],
)
def test_a_bad_requeue_asks_nothing(dueline: Any, store: Any, words: tuple[str, ...]) -> None:
    dead(store, 1)
    ran = dueline("dead", "requeue", *words)
    assert (ran.code, ran.out, store.commands) == (2, "", [])
    assert ran.err.count("\n") == 1


def test_a_rate_spaces_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    clock = SimpleNamespace(sleep=paused.append, monotonic=lambda: 100.0)
    monkeypatch.setattr(client_dead, "time", clock)
    runs = list(range(4))
    assert list(client_dead._paced(runs, 2.0)) == runs  # type: ignore[arg-type, comparison-overlap]
    assert paused == [0.0, 0.5, 1.0, 1.5]
    assert list(client_dead._paced(runs, None)) == runs  # type: ignore[arg-type, comparison-overlap]
    assert len(paused) == 4


def test_an_unreachable_store_is_exit_code_5(dueline: Any, store: Any) -> None:
    store.cluster.reachable = False
    assert [dueline("dead", *words).code for words in (("list",), ("requeue", "--all"))] == [5, 5]
