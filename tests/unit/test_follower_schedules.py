"""Schedules and their occurrences as they are read from the topics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import NotFound, codec
from pipeline.core import keys
from pipeline.core.ids import schedule_occurrence
from pipeline.core.job import AckState, Event, Owned, Run
from pipeline.core.schedule import Backfill, OpenRun, Recent, Schedule, ScheduleSpec
from pipeline.ports import Put

T0 = 1_800_000_000_000
"""2027-01-15T08:00:00Z, a Friday."""
HOUR = 3_600_000
SPEC = ScheduleSpec(id="daily", handler="report", cron="0 * * * *", tz="Europe/Berlin")
STATE = Schedule(
    incarnation=7,
    revision=1,
    spec=SPEC,
    created_at=T0 - 10 * HOUR,
    changed_at=T0 - 10 * HOUR,
    last_nominal=T0,
    next_nominal=T0 + HOUR,
    next_due=T0 + HOUR,
)


def put(store: Any, state: Schedule) -> None:
    home = store.layout.home_of_name(state.spec.id)
    record = Put(store.names.jobs, home, keys.schedule_key(state.spec.id), codec.SCHEDULE.encode(state))
    store.cluster.append(record)


def delete(store: Any) -> None:
    home = store.layout.home_of_name("daily")
    store.cluster.append(Put(store.names.jobs, home, keys.schedule_key("daily"), None, [("end", b"deleted")]))


def skip(store: Any, reason: str, first: int, last: int, kind: str = "g") -> None:
    detail = {"schedule": "daily", "kind": kind, "count": "1", "first": str(first), "last": str(last)}
    event = Event(id="s/daily", kind="skipped", at=store.clock.now(), reason=reason, detail=detail)
    home = store.layout.home_of_name("daily")
    store.cluster.append(Put(store.names.events, home, b"daily", codec.EVENT.encode(event)))


def at(nominal: int, kind: Any = "g", manual: str = "", incarnation: int = 7) -> str:
    return schedule_occurrence("daily", incarnation, kind, manual, nominal)


def fire(
    store: Any, nominal: int, state: Schedule, kind: Any = "g", manual: str = "", compacted: bool = False
) -> Run:
    """What an owner writes when an occurrence fires: its run, and the state that says so, until it is compacted."""
    id_ = at(nominal, kind, manual)
    spec = state.spec
    run = Run(
        job_id=id_,
        occurrence_id=id_,
        schedule_id="daily",
        handler=spec.handler,
        queue=spec.queue,
        payload=spec.payload,
        idempotency_key=id_,
        created_at=store.clock.now(),
        due_at=nominal,
        nominal_at=nominal,
        run=1,
        serial=spec.serial,
    )
    partition = store.layout.work_partition(run.queue, run.serial or run.job_id)
    store.cluster.append(Put(store.names.work(run.queue), partition, id_.encode(), codec.RUN.encode(run)))
    told = Recent(nominal_at=nominal, kind=kind, at=store.clock.now(), outcome="fired")
    if not compacted:
        put(store, replace(state, recent=(told, *state.recent)[:10]))
    return run


# -- schedules ----------------------------------------------------------------------------------------------


def test_the_last_state_of_a_schedule_is_shown(store: Any) -> None:
    put(store, STATE)
    put(store, replace(STATE, revision=2, paused="tax season", paused_at=T0))
    view = store.follower.schedule_view("daily", T0)
    assert (view["revision"], view["state"], view["paused"]) == (2, "paused", "tax season")
    assert view["paused_at"] == "2027-01-15T08:00:00.000Z"
    assert view["next"] == []  # nothing comes while it is paused
    delete(store)
    with pytest.raises(NotFound, match="no schedule"):
        store.follower.schedule("daily")


def test_what_an_app_removed_is_none_any_more(store: Any) -> None:
    put(store, STATE)
    put(store, replace(STATE, spec=replace(SPEC, id="gone"), ended="removed"))
    assert [state.spec.id for state in store.follower.schedules()] == ["daily"]
    with pytest.raises(NotFound):
        store.follower.schedule("gone")


def test_what_nobody_can_read_is_no_schedule(store: Any) -> None:
    home = store.layout.home_of_name("daily")
    store.cluster.append(Put(store.names.jobs, home, keys.schedule_key("daily"), b"garbage"))
    put(store, replace(STATE, spec=replace(SPEC, id="other")))
    assert [state.spec.id for state in store.follower.schedules()] == ["other"]


def test_the_next_ten_instants_are_in_its_zone_and_in_utc(store: Any) -> None:
    put(store, STATE)
    following = store.follower.schedule_view("daily", T0)["next"]
    assert len(following) == 10
    assert following[0] == {
        "nominal_at": "2027-01-15T09:00:00.000Z",
        "local": "2027-01-15T10:00:00+01:00",
        "due_at": "2027-01-15T09:00:00.000Z",
    }
    assert following[9]["nominal_at"] == "2027-01-15T18:00:00.000Z"


def test_no_more_are_shown_than_will_come(store: Any) -> None:
    put(store, replace(STATE, spec=replace(SPEC, max_occurrences=5), counts={"fired": 3}))
    assert len(store.follower.schedule_view("daily", T0)["next"]) == 2
    put(store, replace(STATE, spec=replace(SPEC, end_at=T0 + 2 * HOUR)))
    assert len(store.follower.schedule_view("daily", T0)["next"]) == 1
    after = replace(SPEC, cron=None, after_ms=HOUR)
    put(store, replace(STATE, spec=after))
    view = store.follower.schedule_view("daily", T0)
    assert len(view["next"]) == 1  # the others depend on when it finishes
    put(store, replace(STATE, spec=after, ended="end", next_nominal=None, next_due=None))
    view = store.follower.schedule_view("daily", T0)
    assert (view["state"], view["ended"], view["next"]) == ("ended", "end", [])


def test_jitter_moves_the_due_time_alone(store: Any) -> None:
    put(store, replace(STATE, spec=replace(SPEC, jitter_ms=600_000), next_due=T0 + HOUR + 1))
    first, second, *_ = store.follower.schedule_view("daily", T0)["next"]
    assert (first["nominal_at"], first["due_at"]) == ("2027-01-15T09:00:00.000Z", "2027-01-15T09:00:00.001Z")
    assert second["nominal_at"] == "2027-01-15T10:00:00.000Z"
    assert second["nominal_at"] <= second["due_at"] < "2027-01-15T10:10:00.000Z"


def test_counters_and_what_is_under_way(store: Any) -> None:
    counts = {"fired": 9, "succeeded": 7, "dead": 1, "skipped.misfire": 3, "skipped.catch_up": 2}
    counts |= {"skipped.overlap": 4, "skipped.buffer_full": 1, "triggered": 1}
    backfill = Backfill(id="b1", from_at=T0 - 5 * HOUR, to_at=T0, cursor=T0 - HOUR, rate=6, total=5, fired=4)
    put(
        store,
        replace(
            STATE,
            counts=counts,
            open=(OpenRun(occurrence_id=at(T0), nominal_at=T0, emitted_at=T0 + 5, place="default/1"),),
            buffer=(T0 + HOUR,),
            backfills=(backfill,),
            recent=(Recent(nominal_at=T0, kind="t", at=T0 + 9, outcome="succeeded"),),
            last_success_at=T0,
            failures_in_row=2,
        ),
    )
    view = store.follower.schedule_view("daily", T0)
    assert view["counters"] == {
        "fired": 9,
        "triggered": 1,
        "backfilled": 0,
        "succeeded": 7,
        "dead": 1,
        "cancelled": 0,
        "missed": 5,
        "overlapped": 5,
        "skipped": {"buffer_full": 1, "catch_up": 2, "misfire": 3, "overlap": 4},
    }
    assert view["open"] == [
        {"id": at(T0), "nominal_at": "2027-01-15T08:00:00.000Z", "emitted_at": "2027-01-15T08:00:00.005Z"}
    ]
    assert view["waiting"] == ["2027-01-15T09:00:00.000Z"]
    assert (view["backfills"][0]["fired"], view["backfills"][0]["cursor"]) == (4, "2027-01-15T07:00:00.000Z")
    assert view["last"] == [
        {
            "nominal_at": "2027-01-15T08:00:00.000Z",
            "local": "2027-01-15T09:00:00+01:00",
            "kind": "trigger",
            "at": "2027-01-15T08:00:00.009Z",
            "outcome": "succeeded",
        }
    ]
    assert (view["last_success_at"], view["failures_in_row"]) == ("2027-01-15T08:00:00.000Z", 2)


def test_a_line_of_the_list(store: Any) -> None:
    put(store, replace(STATE, recent=(Recent(nominal_at=T0, kind="g", at=T0, outcome="dead"),)))
    put(store, replace(STATE, spec=ScheduleSpec(id="poll", handler="h", every_ms=90_000), paused=""))
    daily, poll = store.follower.schedule_views(T0)
    assert (daily["expression"], daily["tz"], daily["next_local"]) == (
        "0 * * * *",
        "Europe/Berlin",
        "2027-01-15T10:00:00+01:00",
    )
    assert (daily["last_at"], daily["last_outcome"]) == ("2027-01-15T08:00:00.000Z", "dead")
    assert (poll["expression"], poll["state"], poll["paused"], poll["next_at"]) == (
        "@every 90s",
        "paused",
        "",
        None,
    )


@pytest.mark.parametrize(
    ("late", "change", "overdue"),
    [
        (9_000, {}, False),
        (11_000, {}, True),
        (11_000, {"paused": ""}, False),
        (11_000, {"ended": "end"}, False),
    ],
)
def test_an_active_schedule_is_overdue_when_its_owner_should_long_have_looked(
    store: Any, late: int, change: dict[str, Any], overdue: bool
) -> None:
    put(store, replace(STATE, **change))
    (view,) = store.follower.schedule_views(T0 + HOUR + late)
    assert view["overdue"] is overdue


def test_zone_data_that_is_not_here_hides_no_schedule(store: Any) -> None:
    put(store, replace(STATE, spec=replace(SPEC, tz="Mars/Base")))
    view = store.follower.schedule_view("daily", T0)
    assert (view["words"], view["next"][0]["local"]) == ("0 * * * *", "2027-01-15T09:00:00+00:00")
    assert len(view["next"]) == 1


# -- occurrences --------------------------------------------------------------------------------------------


def test_the_next_occurrence_is_pending(store: Any) -> None:
    put(store, STATE)
    view = store.follower.job(at(T0 + HOUR))
    assert (view["status"], view["handler"], view["due_at"], view["runs"]) == (
        "pending",
        "report",
        "2027-01-15T09:00:00.000Z",
        [],
    )
    store.beat("d", role="dispatcher", owned=own(store))
    assert store.follower.why(at(T0 + HOUR), T0).waits_for == "time"


def own(store: Any) -> tuple[Owned, ...]:
    home = store.layout.home_of_name("daily")
    return (Owned(topic=store.names.jobs, partition=home, state="running"),)


def test_one_that_waits_for_an_open_one_says_so(store: Any) -> None:
    open_ = OpenRun(occurrence_id=at(T0 - HOUR), nominal_at=T0 - HOUR, emitted_at=T0, place="default/0")
    put(store, replace(STATE, open=(open_,), buffer=(T0,)))
    assert store.follower.job(at(T0))["status"] == "pending"
    store.beat("d", role="dispatcher", owned=own(store))
    reason = store.follower.why(at(T0), T0)
    assert reason.waits_for == "overlap"
    assert at(T0 - HOUR) in reason.sentence


def test_one_that_fired_is_shown_like_any_job(store: Any, app: Any) -> None:
    put(store, replace(STATE, last_nominal=T0 - HOUR, next_nominal=T0, next_due=T0))
    run = fire(store, T0, STATE)
    assert store.follower.job(at(T0))["status"] == "queued"
    store.ack(run, AckState.STARTED)
    assert store.follower.job(at(T0))["status"] == "running"
    store.ack(run, AckState.SUCCEEDED, result=b'"done"')
    view = store.follower.job(at(T0))
    assert (view["status"], view["result"], len(view["runs"])) == ("succeeded", "done", 1)
    assert app.result(at(T0)) == "done"


def test_it_is_found_after_its_schedule_was_changed_or_forgot_it(store: Any) -> None:
    store.add_queues({"mail": 5})
    run = fire(store, T0, STATE)
    store.ack(run, AckState.SUCCEEDED)
    put(store, replace(STATE, spec=replace(SPEC, queue="mail", serial="one"), recent=()))
    assert store.follower.job(at(T0))["status"] == "succeeded"
    put(store, replace(STATE, incarnation=9))
    assert store.follower.job(at(T0))["status"] == "succeeded"
    delete(store)
    assert store.follower.job(at(T0))["status"] == "succeeded"


def test_one_of_which_only_the_state_of_today_is_left_is_found(store: Any, app: Any) -> None:
    run = fire(store, T0, STATE, compacted=True)
    store.ack(run, AckState.SUCCEEDED, result=b"1")
    put(store, replace(STATE, last_nominal=T0 + 50 * HOUR, next_nominal=T0 + 51 * HOUR, recent=()))
    assert store.follower.job(at(T0))["status"] == "succeeded"
    assert app.result(at(T0)) == 1


@pytest.mark.parametrize(("kind", "manual", "nominal"), [("t", "t1", T0 + 7), ("b", "b1", T0 - 90 * HOUR)])
def test_triggers_and_backfills_are_found(store: Any, kind: str, manual: str, nominal: int) -> None:
    run = fire(store, nominal, STATE, kind, manual)
    store.ack(run, AckState.SUCCEEDED)
    assert store.follower.job(at(nominal, kind, manual))["status"] == "succeeded"


@pytest.mark.parametrize("told_by", ["state", "event"])
def test_one_that_was_skipped_says_why(store: Any, told_by: str) -> None:
    if told_by == "state":
        recent = Recent(nominal_at=T0, kind="g", at=T0, outcome="skipped.overlap")
        put(store, replace(STATE, recent=(recent,)))
    else:
        put(store, STATE)
        skip(store, "overlap", T0 - 3 * HOUR, T0)
    assert store.follower.job(at(T0))["status"] == "skipped"
    reason = store.follower.why(at(T0), T0)
    assert (reason.waits_for, reason.sentence) == (
        None,
        "its schedule skipped it: an earlier occurrence still ran",
    )


@pytest.mark.parametrize(
    ("nominal", "incarnation"),
    [(T0 + 60_000, 7), (T0 + 3 * HOUR, 7), (T0 - HOUR, 7), (T0, 6)],
    ids=["off-grid", "far", "unknown", "other-incarnation"],
)
def test_an_occurrence_of_which_nothing_is_told_is_not_found(
    store: Any, nominal: int, incarnation: int
) -> None:
    put(store, STATE)
    skip(store, "overlap", T0, T0 + 2 * HOUR)
    skip(store, "overlap", T0 - 2 * HOUR, T0 - HOUR, kind="b")
    with pytest.raises(NotFound):
        store.follower.job(at(nominal, incarnation=incarnation))


def test_one_that_was_to_come_is_cancelled_with_its_schedule(store: Any) -> None:
    put(store, STATE)
    delete(store)
    assert store.follower.job(at(T0 + HOUR))["status"] == "cancelled"


def test_a_retry_of_an_occurrence_is_a_retry_like_any(store: Any) -> None:
    run = fire(store, T0, STATE)
    store.ack(run, AckState.RETRYING)
    store.put(replace(run, run=2, due_at=T0 + 60_000))
    view = store.follower.job(at(T0))
    assert (view["status"], view["due_at"]) == ("retrying", "2027-01-15T08:01:00.000Z")


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"paused": "why"}, "the schedule was paused"),
        ({"revision": 2}, "the schedule was changed before it was due"),
        ({"ended": "end"}, "the schedule had come to its end"),
        (None, "the schedule was deleted before it fired"),
    ],
)
def test_what_was_to_come_and_does_not_says_why(
    store: Any, after: dict[str, Any] | None, reason: str
) -> None:
    put(store, STATE)
    if after is None:
        delete(store)
    else:
        put(store, replace(STATE, next_nominal=None, next_due=None, **after))
    view = store.follower.job(at(T0 + HOUR))
    assert (view["status"], view["handler"], view["queue"]) == ("cancelled", "report", "default")
    assert view["due_at"] == "2027-01-15T09:00:00.000Z"
    assert store.follower.why(at(T0 + HOUR), T0).sentence == f"it was cancelled before it fired: {reason}"


@pytest.fixture
def mail(store: Any) -> None:
    """Another queue, before anything follows."""
    store.add_queues({"mail": 3})


def caught_up(store: Any, **changes: Any) -> Schedule:
    """A state that decided twenty instants at once, of which it notes the last ten."""
    store.clock.advance(20 * HOUR)
    last = T0 + 20 * HOUR
    noted = tuple(
        Recent(nominal_at=last - n * HOUR, kind="g", at=store.clock.now(), outcome="fired") for n in range(10)
    )
    return replace(
        STATE, last_nominal=last, next_nominal=last + HOUR, next_due=last + HOUR, recent=noted, **changes
    )


@pytest.mark.parametrize("changed", [False, True])
def test_one_that_fired_among_more_than_its_schedule_notes_was_not_taken_away(
    store: Any, mail: None, changed: bool
) -> None:
    put(store, STATE)
    changes: dict[str, Any] = {}
    if changed:
        moved = replace(SPEC, queue="mail")
        changes = {"revision": 2, "changed_at": store.clock.now() + 20 * HOUR, "spec": moved}
    after = caught_up(store, **changes)
    run = fire(store, T0 + HOUR, STATE, compacted=True)
    put(store, after)
    assert store.follower.job(at(T0 + HOUR))["status"] == "queued"
    store.ack(run, AckState.SUCCEEDED)
    put(store, replace(after, counts={"succeeded": 1}))
    view = store.follower.job(at(T0 + HOUR))
    assert (view["status"], view["queue"]) == ("succeeded", "default")


def test_one_that_was_skipped_among_more_than_its_schedule_notes_was_not_taken_away(store: Any) -> None:
    put(store, STATE)
    put(store, caught_up(store))
    skip(store, "misfire", T0 + HOUR, T0 + 10 * HOUR)
    reason = store.follower.why(at(T0 + HOUR), store.clock.now())
    assert reason.sentence == "its schedule skipped it: it was missed, and its policy does not make it up"


def test_what_was_skipped_is_shown_as_what_would_have_run(store: Any) -> None:
    put(store, replace(STATE, last_nominal=T0 + 5 * HOUR, next_nominal=T0 + 6 * HOUR, next_due=T0 + 6 * HOUR))
    store.clock.advance(5 * HOUR)
    skip(store, "misfire", T0 + HOUR, T0 + 4 * HOUR)
    view = store.follower.job(at(T0 + 2 * HOUR))
    assert (view["status"], view["handler"], view["queue"]) == ("skipped", "report", "default")
    assert view["due_at"] == "2027-01-15T10:00:00.000Z"


def test_the_last_outcome_is_told_with_the_time_it_was_heard_not_with_its_instant(store: Any) -> None:
    """A backfill of last month ended today."""
    noted = Recent(nominal_at=T0 - 500 * HOUR, kind="b", at=T0 + 1_000, outcome="succeeded")
    put(store, replace(STATE, recent=(noted,)))
    (line,) = store.follower.schedule_views(T0)
    assert (line["last_at"], line["last_outcome"]) == ("2027-01-15T08:00:01.000Z", "succeeded")
