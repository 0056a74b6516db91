"""Lists of jobs: filters, pages, cursors."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from unit.readmodel.test_jobs import DUE, run_of

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import InvalidInput
from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState, Failure, JobStatus, KeyState, Run
from pipeline.ports import Put
from pipeline.readmodel import JobsWanted, ReadModel, lists

Settled = Callable[[], ReadModel]


def put_keyed(store: Any, key: str, due_at: int, incarnation: int = 7, **fields: Any) -> Run:
    id_ = keyed_id(key)
    occurrence = f"{id_}.{incarnation}"
    run = replace(
        run_of(due_at=due_at, **fields),
        job_id=id_,
        occurrence_id=occurrence,
        key=key,
        idempotency_key=occurrence,
    )
    state = KeyState(
        incarnation=incarnation, phase="pending", highest_run=0, unique="finished", changed_at=DUE, run=run
    )
    home = store.layout.home(id_)
    store.cluster.append(Put(store.names.jobs, home, keys.keyed_key(key), codec.KEY_STATE.encode(state)))
    return run


def ids(model: ReadModel, **wanted: Any) -> list[str]:
    return [row["id"] for row in model.jobs(JobsWanted(**wanted), limit=100).rows]


@pytest.fixture
def town(store: Any, settled: Settled) -> tuple[ReadModel, dict[str, str]]:
    """Jobs of all kinds, by a name each."""
    plain, labelled = run_of(1, due_at=DUE), run_of(2, due_at=DUE + 1_000, labels={"team": "a", "x": "y"})
    other = run_of(3, due_at=DUE + 2_000, handler="report.make")
    failed, done = run_of(4, due_at=DUE + 3_000), run_of(5, due_at=DUE + 4_000)
    for run in (plain, labelled, other, failed, done):
        store.put(run)
    for run, state in ((failed, AckState.DEAD), (done, AckState.SUCCEEDED)):
        store.fire(run)
        error = Failure(type="ValueError", message="no\nreally") if state is AckState.DEAD else None
        store.ack(run, state, error=error)
    named = {"plain": plain, "labelled": labelled, "other": other, "failed": failed, "done": done}
    found = {name: run.job_id for name, run in named.items()}
    for n, key in enumerate(("invoice_1", "invoice_2", "order/1")):
        found[key] = put_keyed(store, key, DUE + 10_000 + n).job_id
    return settled(), found


def test_filters(town: tuple[ReadModel, dict[str, str]]) -> None:
    model, named = town

    def of(*names: str) -> list[str]:
        return [named[name] for name in names]

    assert ids(model) == of(
        "plain", "labelled", "other", "failed", "done", "invoice_1", "invoice_2", "order/1"
    )
    assert ids(model, statuses=frozenset({JobStatus.DEAD})) == of("failed")
    assert ids(model, handler="report.make") == of("other")
    assert ids(model, handler="nobody") == []
    assert ids(model, queue="default", labels={"team": "a"}) == of("labelled")
    assert ids(model, queue="other") == []
    assert ids(model, key_prefix="invoice_") == of("invoice_1", "invoice_2")
    assert ids(model, key_prefix="invoice_", order="-due") == of("invoice_2", "invoice_1")
    assert ids(model, due_from=DUE + 1_000, due_to=DUE + 3_000) == of("labelled", "other")
    assert ids(model, text="rder/") == of("order/1")
    assert ids(model, text=named["plain"][5:]) == of("plain")
    assert ids(model, schedule="daily") == []
    assert ids(model, schedule="daily", key_prefix="invoice_") == []
    assert ids(model, schedule="daily", text=named["plain"]) == []
    for name in ("plain", "invoice_1"):
        assert ids(model, text=named[name]) == of(name)
        assert model.jobs(JobsWanted(text=named[name])).scanned == 1
    assert ids(model, text=named["plain"], statuses=frozenset({JobStatus.DEAD})) == []
    assert model.job(named["invoice_1"])["key"] == "invoice_1"


def test_a_list_begins_at_the_first_that_is_there(store: Any, settled: Settled) -> None:
    """However many have gone on before it, and however far it is."""
    far = [run_of(n, due_at=DUE + n * 3_600_000 * 100 + n * 60_000) for n in range(5)]
    for run in far:
        store.put(run)
    for run in far[:3]:
        store.fire(run)
    model = settled()
    assert ids(model, statuses=frozenset({JobStatus.PENDING})) == [run.job_id for run in far[3:]]
    assert ids(model, statuses=frozenset({JobStatus.QUEUED})) == [run.job_id for run in far[:3]]
    assert ids(model) == [run.job_id for run in far]
    assert ids(model, due_from=far[4].due_at) == [far[4].job_id]
    assert ids(model, due_from=1 << 70) == ids(model, due_to=-5) == []


@pytest.mark.parametrize("most", [0, 100], ids=["scanned", "looked-up"])
def test_a_key_is_all_of_it_and_a_prefix_how_it_begins(
    town: tuple[ReadModel, dict[str, str]], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    model, named = town
    monkeypatch.setattr(lists, "MOST_KEYS", most)
    assert ids(model, key="invoice_1") == [named["invoice_1"]]
    assert ids(model, key="invoice_") == []
    assert model.count(JobsWanted(key="invoice_2")) == (1, False)


def test_keys_that_are_too_many_to_be_sorted(
    town: tuple[ReadModel, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, named = town
    monkeypatch.setattr(lists, "MOST_KEYS", 1)
    assert ids(model, key_prefix="invoice_") == [named["invoice_1"], named["invoice_2"]]


def test_what_ended_badly_says_why_in_one_line(town: tuple[ReadModel, dict[str, str]]) -> None:
    model, named = town
    (row,) = model.jobs(JobsWanted(statuses=frozenset({JobStatus.DEAD}))).rows
    assert (row["id"], row["error"]) == (named["failed"], "ValueError: no")
    assert row["ended_at"] is not None


def test_counts(town: tuple[ReadModel, dict[str, str]]) -> None:
    model, _ = town
    assert model.count(JobsWanted()) == (8, False)
    assert model.count(JobsWanted(statuses=frozenset({JobStatus.PENDING}))) == (6, False)
    assert model.count(JobsWanted(due_from=DUE + 1_000)) == (7, False)
    assert model.count(JobsWanted(due_from=DUE + 1_000), at_most=2) == (2, True)
    assert model.count(JobsWanted(labels={"team": "a"})) == (1, False)


def test_a_count_that_runs_out_of_time_says_whether_anything_was_left(
    store: Any, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(17):
        store.put(run_of(n, due_at=DUE + n))
    model = settled()
    monkeypatch.setattr(lists, "COUNTED_S", -1.0)
    monkeypatch.setattr(lists, "CHUNK", 1)  # sixteen are counted at once
    assert model.count(JobsWanted(due_from=DUE + 1)) == (16, False)
    assert model.count(JobsWanted(due_from=DUE)) == (16, True)


def test_a_scan_has_a_budget_and_goes_on_behind_it(
    town: tuple[ReadModel, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, named = town
    monkeypatch.setattr(lists, "BUDGET", 2)
    monkeypatch.setattr(lists, "CHUNK", 2)
    found, cursor, pages = [], None, 0
    while True:
        page = model.jobs(JobsWanted(labels={"x": "y"}), cursor=cursor)
        found += [row["id"] for row in page.rows]
        pages += 1
        assert page.scanned <= 2
        if (cursor := page.cursor) is None:
            break
    assert (found, pages) == ([named["labelled"]], 5)


def test_a_cursor_does_not_tell_the_row_it_stands_at(
    town: tuple[ReadModel, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of somebody limited to a queue that row may be another's; and what two of them have in common does not show."""
    model, named = town
    cursors = [model.jobs(JobsWanted(), limit=limit).cursor or "" for limit in (1, 2)]
    plain = [base64.urlsafe_b64decode(cursor + "==") for cursor in cursors]
    assert not any(name.encode() in text for name in named.values() for text in plain)
    assert plain[0][: lists.SEAL] != plain[1][: lists.SEAL]
    assert plain[0][lists.SEAL :][:4] != plain[1][lists.SEAL :][:4]


def test_a_page_gets_somewhere_however_slow_the_machine_is(
    town: tuple[ReadModel, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, named = town
    monkeypatch.setattr(lists, "BUDGET_S", -1.0)
    monkeypatch.setattr(lists, "CHUNK", 1)
    page = model.jobs(JobsWanted(labels={"x": "y"}))
    assert ([row["id"] for row in page.rows], page.cursor) == ([named["labelled"]], None)
    monkeypatch.setattr(lists, "LEAST", 3)
    assert model.jobs(JobsWanted(labels={"x": "y"})).scanned == 3


def test_who_is_limited_to_queues_has_full_pages(store: Any, settled: Settled) -> None:
    """Of every four jobs one is theirs, and they see no less on a page for it."""
    runs = [
        run_of(n, due_at=DUE + n, queue=("mail", "default", "sms", "default")[n % 4]) for n in range(1, 41)
    ]
    for run in runs:
        store.put(run)
    model, both = settled(), frozenset({"mail", "sms"})
    mail = [run.job_id for run in runs if run.queue == "mail"]
    first = model.jobs(JobsWanted(queues=frozenset({"mail"})), limit=6)
    assert first.scanned == 6
    rest = model.jobs(JobsWanted(queues=frozenset({"mail"})), limit=6, cursor=first.cursor)
    assert [row["id"] for row in first.rows] == mail[:6]
    assert ([row["id"] for row in rest.rows], rest.cursor) == (mail[6:], None)
    assert ids(model, queues=both) == [run.job_id for run in runs if run.queue != "default"]
    assert ids(model, queues=both, queue="default") == ids(model, queues=frozenset()) == []
    assert model.count(JobsWanted(queues=both)) == (20, False)
    with pytest.raises(InvalidInput, match="of another list"):
        model.jobs(JobsWanted(queues=both), cursor=first.cursor)


def test_a_scan_of_other_rows_has_a_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(b"%d" % n, n) for n in range(10)]

    def few(limit: int) -> tuple[list[int], bytes | None, int]:
        return lists.page_of(iter(rows), limit, lambda n: n > 7)

    assert few(1) == ([8], b"8", 9)
    monkeypatch.setattr(lists, "BUDGET", 3)
    assert few(1) == ([], b"2", 3)
    monkeypatch.setattr(lists, "LEAST", 2)
    monkeypatch.setattr(lists, "BUDGET_S", -1.0)
    assert few(1) == ([], b"1", 2)


def test_what_a_queue_has_none_of_is_not_looked_for_among_all_others(
    store: Any, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_queues({"mail": 2, "sms": 2})
    store.cluster.append(Put(store.names.meta, 0, keys.LAYOUT_KEY, codec.LAYOUT.encode(store.layout)))
    runs = [run_of(n, due_at=DUE + n, queue="mail" if n == 7 else "default") for n in range(20)]
    for run in runs:
        store.put(run)
    store.fire(runs[7])
    model, queued = settled(), frozenset({JobStatus.QUEUED})
    pages = {
        "none there": JobsWanted(queue="sms"),
        "none pending": JobsWanted(queue="mail", statuses=frozenset({JobStatus.PENDING})),
        "none allowed": JobsWanted(queues=frozenset()),
        "another one": JobsWanted(queue="default", queues=frozenset({"mail"})),
    }
    found = {name: model.jobs(wanted) for name, wanted in pages.items()}
    assert {name: (len(page.rows), page.scanned) for name, page in found.items()} == dict.fromkeys(
        pages, (0, 0)
    )
    page = model.jobs(JobsWanted(queues=frozenset({"mail"})))
    assert ([row["id"] for row in page.rows], page.scanned) == ([runs[7].job_id], 1)
    monkeypatch.setattr(lists, "COUNTED", 0)
    monkeypatch.setattr(lists, "CHUNK", 0)
    assert model.count(JobsWanted(queue="default"), at_most=5) == (19, False)
    assert model.count(JobsWanted(queues=frozenset({"mail", "default"}), statuses=queued)) == (1, False)
    assert model.count(JobsWanted(queue="sms")) == (0, False)


@pytest.mark.parametrize("cursor", ["", "?", "AAAA", "aGVsbG8gd29ybGQgaGVsbG8", "é"])
def test_a_cursor_that_is_none_of_ours(settled: Settled, cursor: str) -> None:
    with pytest.raises(InvalidInput, match=r"^cursor:"):
        settled().jobs(JobsWanted(), cursor=cursor)


def test_a_cursor_of_another_list(town: tuple[ReadModel, dict[str, str]]) -> None:
    model, _ = town
    cursor = model.jobs(JobsWanted(), limit=2).cursor
    with pytest.raises(InvalidInput, match="another list"):
        model.jobs(JobsWanted(handler="report.make"), cursor=cursor)


@pytest.mark.parametrize(("wanted", "field"), [({"order": "name"}, "order"), ({}, "limit")])
def test_what_makes_no_sense(settled: Settled, wanted: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}:"):
        settled().jobs(JobsWanted(**wanted), limit=0 if field == "limit" else 5)


def test_handlers_without_a_number_of_their_own(
    store: Any, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may append can make up any number of names."""
    monkeypatch.setattr("pipeline.readmodel.words.MOST", 3)
    runs = [run_of(n, due_at=DUE + n, handler=f"h{n}") for n in range(6)]
    for run in runs:
        store.put(run)
    model = settled()
    assert [row["handler"] for row in model.jobs(JobsWanted()).rows] == [f"h{n}" for n in range(6)]
    assert ids(model, handler="h5") == [runs[5].job_id]
    assert ids(model, handler="h1") == [runs[1].job_id]


def test_an_older_incarnation_of_a_key_is_named_with_it(store: Any, settled: Settled) -> None:
    first = put_keyed(store, "k", DUE, incarnation=7)
    put_keyed(store, "k", DUE + 5_000, incarnation=9)
    model = settled()
    told = {row["id"]: row["status"] for row in model.jobs(JobsWanted()).rows}
    assert told == {first.occurrence_id: "cancelled", first.job_id: "pending"}
    assert model.job(first.occurrence_id)["status"] == "cancelled"
