"""`dueline cron` but for sync and import, over a store in memory; its JSON has the schemas in schemas/cli."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.schedule import Recent, Schedule, ScheduleSpec
from pipeline.core.times import format_instant
from pipeline.core.timing import TimingSpec, timing_of
from pipeline.follower.schedules import STANDINGS
from pipeline.ports import Put

T0 = 1_800_000_000_000
HOUR = 3_600_000
SPEC = ScheduleSpec(id="daily", handler="report", cron="0 * * * *", tz="Europe/Berlin", source="cli")
STATE = Schedule(
    incarnation=7,
    revision=3,
    spec=SPEC,
    created_at=T0 - 10 * HOUR,
    changed_at=T0 - 10 * HOUR,
    last_nominal=T0,
    next_nominal=T0 + HOUR,
    next_due=T0 + HOUR,
)
CREATE = ("cron", "create", "daily", "--handler", "report")


def put(store: Any, state: Schedule) -> None:
    home = store.layout.home_of_name(state.spec.id)
    record = Put(store.names.jobs, home, keys.schedule_key(state.spec.id), codec.SCHEDULE.encode(state))
    store.cluster.append(record)


def answering(store: Any, outcome: str, **fields: Any) -> None:
    store.owner = lambda _command: {"outcome": outcome, **fields}


# -- create and update --------------------------------------------------------------------------------------


def test_a_schedule_is_created_with_every_option(dueline: Any, store: Any) -> None:
    answering(store, "created", detail={"next_due": str(T0 + HOUR), "revision": "1"})
    store.beat("w", handlers=("report",))
    words = (
        "--cron",
        "0 8 * * mon-fri",
        "--tz",
        "Europe/Berlin",
        "--dst-gap",
        "skip",
        "--dst-overlap",
        "both",
    )
    words += (
        "--exclude",
        "holidays=2027-12-25",
        "--exclude",
        "holidays=2027-12-26",
        "--exclude",
        "audit=2028-01-01",
    )
    words += ("--start", "2027-01-01T00:00:00Z", "--end", "2028-01-01T00:00:00Z", "--jitter", "30s")
    words += (
        "--payload",
        '{"to": "board"}',
        "--max-occurrences",
        "9",
        "--misfire",
        "all(3)",
        "--catch-up",
        "1d",
    )
    words += ("--misfire-threshold", "5m", "--overlap", "buffer_all(2)", "--overlap-timeout", "2h")
    words += ("--pause-after", "3", "--max-attempts", "2", "--timeout", "1m", "--serial", "board")
    words += ("--label", "team=finance", "--header", "trace=1", "--note", "for the board", "--json")
    ran = dueline(*CREATE, *words)
    assert (ran.code, ran.err) == (0, "")
    assert ran.json("cron_create") == {
        "id": "daily",
        "outcome": "created",
        "next_due": "2027-01-15T09:00:00.000Z",
        "revision": 1,
    }
    (command,) = store.commands
    assert command.spec == ScheduleSpec(
        id="daily",
        handler="report",
        cron="0 8 * * mon-fri",
        tz="Europe/Berlin",
        dst_gap="skip",
        dst_overlap="both",
        exclude={"holidays": ("2027-12-25", "2027-12-26"), "audit": ("2028-01-01",)},
        start_at=1_798_761_600_000,
        end_at=1_830_297_600_000,
        jitter_ms=30_000,
        payload=b'{"to":"board"}',
        max_occurrences=9,
        misfire="all(3)",
        catch_up_ms=86_400_000,
        misfire_threshold_ms=300_000,
        overlap="buffer_all(2)",
        overlap_timeout_ms=7_200_000,
        pause_after=3,
        attempt_limit=2,
        timeout_ms=60_000,
        serial="board",
        labels={"team": "finance"},
        headers={"trace": "1"},
        note="for the board",
        source="cli",
    )


def test_an_interval_after_each_finish(dueline: Any, store: Any) -> None:
    answering(store, "created")
    ran = dueline(*CREATE, "--every", "10m", "--after", "finish")
    assert (ran.code, ran.out) == (0, "created daily\n")
    assert "no live worker knows the handler 'report'" in ran.err
    assert store.commands[0].spec.after_ms == 600_000


def test_one_that_exists_is_left_alone_and_only_the_same_is_no_refusal(dueline: Any, store: Any) -> None:
    answering(store, "existing", detail={"next_due": str(T0 + HOUR), "revision": "3"})
    put(store, replace(STATE, spec=replace(SPEC, source="app:shop")))
    ran = dueline(*CREATE, "--cron", "0 * * * *", "--tz", "Europe/Berlin", "--json")
    assert (ran.code, ran.json("cron_create")["outcome"]) == (0, "existing")
    ran = dueline(*CREATE, "--cron", "5 * * * *", "--tz", "Europe/Berlin", "--json")
    assert (ran.code, ran.json("cron_create")["outcome"]) == (4, "existing")
    assert "exists with another definition" in ran.err


def test_without_an_owner_it_is_accepted(dueline: Any) -> None:
    ran = dueline(*CREATE, "--cron", "@daily", "--wait", "20ms", "--json")
    assert (ran.code, ran.json("cron_create")["outcome"]) == (0, "accepted")
    assert "no owner answered" in ran.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "--cron: give exactly one of cron and every"),
        (("--cron", "@daily", "--every", "1m"), "--cron: give exactly one"),
        (("--cron", "0 10 * *"), "--cron: "),
        (("--cron", "* * * * * * *"), "--cron: "),
        (("--cron", "R * * * *"), "--cron: "),
        (("--cron", "0 0 30 2 *"), "--cron: "),
        (("--cron", "@daily", "--tz", "Mars/Base"), "--tz: "),
        (("--cron", "@daily", "--start", "2027-01-01"), "--start: "),
        (("--cron", "@daily", "--start", "2028-01-01T00:00:00Z", "--end", "2027-01-01T00:00:00Z"), "--end: "),
        (("--cron", "@daily", "--misfire", "some"), "--misfire: "),
        (("--cron", "@daily", "--overlap", "buffer_all(0)"), "--overlap: "),
        (("--cron", "@daily", "--payload", "[1]"), "--payload: "),
        (("--cron", "@daily", "--label", "a"), "--label: "),
        (("--cron", "@daily", "--exclude", "a"), "--exclude: "),
        (("--cron", "@daily", "--exclude", "a=tomorrow"), "--exclude: "),
        (("--cron", "@daily", "--queue", "nowhere"), "--queue: "),
        (("--cron", "@daily", "--wait", "x"), "--wait: "),
        (("--every", "0s"), "--every: "),
        (("--every", "1m", "--jitter", "2m", "--nonsense"), "--nonsense"),
    ],
)
def test_a_bad_option_is_one_line_and_asks_nothing(
    dueline: Any, store: Any, words: tuple[str, ...], told: str
) -> None:
    ran = dueline(*CREATE, *words)
    assert (ran.code, ran.out, store.commands) == (2, "", [])
    assert ran.err.count("\n") == 1
    assert told in ran.err


def test_a_bad_id_is_named(dueline: Any, store: Any) -> None:
    ran = dueline("cron", "create", "No Id", "--handler", "h", "--cron", "@daily")
    assert (ran.code, store.commands) == (2, [])
    assert ran.err.startswith("dueline: ID: ")


def test_an_update_changes_what_it_names(dueline: Any, store: Any) -> None:
    put(store, replace(STATE, spec=replace(SPEC, serial="one", end_at=T0 + 9 * HOUR)))
    answering(store, "updated", detail={"next_due": str(T0 + HOUR), "revision": "4"})
    ran = dueline("cron", "update", "daily", "--tz", "UTC", "--clear", "end", "--clear", "serial", "--json")
    assert (ran.code, ran.json("cron_update")["revision"]) == (0, 4)
    assert store.commands[0].spec == replace(SPEC, tz="UTC")
    for words, told in (((), "nothing to change"), (("--clear", "cron"), "--clear: 'cron' is none of")):
        ran = dueline("cron", "update", "daily", *words)
        assert (ran.code, ran.out) == (2, "")
        assert told in ran.err
    ran = dueline("cron", "update", "other", "--tz", "UTC", "--json")
    assert (ran.code, ran.json("cron_update")["outcome"]) == (3, "not_found")
    answering(store, "refused", reason="revision: it is 4 by now, not 3")
    ran = dueline("cron", "update", "daily", "--tz", "UTC")
    assert (ran.code, ran.out, ran.err) == (4, "", "dueline: daily: it is 4 by now, not 3\n")


# -- changes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "app:shop.jobs",
            "app shop.jobs: the next start of its worker, or `cron sync --app`, takes this back\n",
        ),
        ("file:jobs.toml", "file jobs.toml: the next `cron sync` of it takes this back\n"),
        ("cli", ""),
        ("api", ""),
    ],
)
def test_who_will_take_a_change_back_is_told(dueline: Any, store: Any, source: str, told: str) -> None:
    put(store, replace(STATE, spec=replace(SPEC, source=source)))
    for outcome, words in (("updated", ("update", "daily", "--tz", "UTC")), ("deleted", ("delete", "daily"))):
        answering(store, outcome)
        ran = dueline("cron", *words)
        assert (ran.code, ran.err) == (0, told and f"dueline: daily is kept by {told}")
    answering(store, "not_found")  # gone meanwhile
    assert "is kept by" not in dueline("cron", "delete", "daily").err


@pytest.mark.parametrize(
    ("words", "outcome", "detail"),
    [
        (("pause", "--note", "tax season"), "paused", {"note": "tax season"}),
        (("resume",), "resumed", {}),
        (("delete",), "deleted", {}),
        (("trigger", "--overlap", "skip"), "fired", {"overlap": "skip"}),
    ],
)
def test_each_change_tells_its_outcome(
    dueline: Any, store: Any, words: tuple[str, ...], outcome: str, detail: dict[str, str]
) -> None:
    verb, *options = words
    answering(store, outcome, detail={"next_due": str(T0 + HOUR)}, occurrence_id="s:daily:7:t:x:1")
    ran = dueline("cron", verb, "daily", *options, "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json(f"cron_{verb}")["outcome"] == outcome
    (command,) = store.commands
    assert (command.verb, command.schedule_id, command.detail) == (f"schedule.{verb}", "daily", detail)
    assert dueline("cron", verb, "daily").out.startswith(f"{outcome} daily")
    answering(store, "not_found")
    ran = dueline("cron", verb, "daily", "--json")
    assert (ran.code, ran.json(f"cron_{verb}")["outcome"]) == (3, "not_found")
    store.owner = lambda _command: None
    ran = dueline("cron", verb, "daily", "--wait", "20ms", "--json")
    assert (ran.code, ran.json(f"cron_{verb}")["outcome"]) == (1, "unknown")
    assert "no owner answered" in ran.err


def test_a_trigger_tells_its_occurrence_and_a_skip_is_a_refusal(dueline: Any, store: Any) -> None:
    answering(store, "fired", occurrence_id="s:daily:7:t:x:1")
    assert dueline("cron", "trigger", "daily", "--json").json("cron_trigger") == {
        "id": "daily",
        "outcome": "fired",
        "occurrence_id": "s:daily:7:t:x:1",
        "next_due": None,
    }
    answering(store, "skipped", reason="an occurrence is open")
    assert dueline("cron", "trigger", "daily", "--overlap", "skip").code == 4


# -- backfill -----------------------------------------------------------------------------------------------

RANGE = ("--from", "2027-01-01T00:00:00Z", "--to", "2027-01-02T00:00:00Z")


def test_a_backfill_is_counted_before_it_starts(dueline: Any, store: Any) -> None:
    put(store, STATE)
    ran = dueline("cron", "backfill", "daily", *RANGE, "--dry-run", "--json")
    assert (ran.code, store.commands) == (0, [])
    assert ran.json("cron_backfill") == {"id": "daily", "outcome": "counted", "backfill": None, "total": 24}
    answering(store, "started", detail={"total": "24", "backfill": "b1"})
    ran = dueline("cron", "backfill", "daily", *RANGE, "--rate", "6", "--reverse", "--json")
    assert ran.json("cron_backfill") == {"id": "daily", "outcome": "started", "backfill": "b1", "total": 24}
    assert store.commands[0].detail == {
        "from": "1798761600000",
        "to": "1798848000000",
        "limit": "1000",
        "rate": "6",
        "reverse": "true",
    }


def test_many_are_refused_without_yes(dueline: Any, store: Any) -> None:
    put(store, replace(STATE, spec=replace(SPEC, cron="* * * * *")))
    ran = dueline("cron", "backfill", "daily", *RANGE)
    assert (ran.code, ran.out, store.commands) == (4, "", [])
    assert "1440 occurrences are more than 1000: add --yes" in ran.err
    answering(store, "started", detail={"total": "1440", "backfill": "b1"})
    assert dueline("cron", "backfill", "daily", *RANGE, "--yes").code == 0
    assert int(store.commands[0].detail["limit"]) >= 1440


def test_a_backfill_is_cancelled(dueline: Any, store: Any) -> None:
    answering(store, "cancelled")
    ran = dueline("cron", "backfill", "daily", "--cancel", "b1", "--json")
    assert ran.json("cron_backfill")["outcome"] == "cancelled"
    assert (store.commands[0].verb, store.commands[0].detail) == (
        "schedule.cancel_backfill",
        {"backfill": "b1"},
    )


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((), 2, "--from and --to are needed"),
        ((*RANGE, "--cancel", "b1"), 2, "--cancel excludes"),
        (("--from", "x", "--to", "2027-01-02T00:00:00Z"), 2, "--from: "),
        ((*RANGE[2:], "--from", "2027-02-01T00:00:00Z"), 2, "--to: is not after from"),
        (("--from", "2027-01-01T00:00:00Z", "--to", "2027-02-01T00:00:00Z"), 2, "--to: is in the future"),
        ((*RANGE, "--overlap", "buffer_one"), 2, "--overlap: "),
        ((*RANGE, "--rate", "0"), 2, "--rate"),
    ],
)
def test_a_bad_backfill_asks_nothing(
    dueline: Any, store: Any, words: tuple[str, ...], code: int, told: str
) -> None:
    put(store, STATE)
    ran = dueline("cron", "backfill", "daily", *words)
    assert (ran.code, ran.out, store.commands) == (code, "", [])
    assert told in ran.err


def test_a_backfill_of_nothing_is_not_found_and_one_without_grid_is_refused(dueline: Any, store: Any) -> None:
    ran = dueline("cron", "backfill", "daily", *RANGE, "--json")
    assert (ran.code, ran.json("cron_backfill")["outcome"]) == (3, "not_found")
    put(store, replace(STATE, spec=replace(SPEC, cron=None, after_ms=HOUR)))
    ran = dueline("cron", "backfill", "daily", *RANGE)
    assert (ran.code, ran.out) == (2, "")
    assert "it has no past" in ran.err


# -- reading ------------------------------------------------------------------------------------------------


def test_describe_says_all_there_is(dueline: Any, store: Any) -> None:
    recent = Recent(nominal_at=T0, kind="g", at=T0 + 5, outcome="succeeded")
    put(
        store, replace(STATE, recent=(recent,), counts={"fired": 4, "skipped.overlap": 2}, last_success_at=T0)
    )
    ran = dueline("cron", "describe", "daily", "--json")
    view = ran.json("cron_describe")
    assert (ran.code, view["counters"]["fired"], view["counters"]["overlapped"]) == (0, 4, 2)
    assert view["spec"]["cron"] == "0 * * * *"
    text = dueline("cron", "describe", "daily").out
    for told in (
        *("Europe/Berlin", "active", "2 overlap", "4 fired", "revision 3"),
        *("2027-01-15T09:00:00+01:00", "2027-01-15T08:00:00.000Z", "succeeded"),
        *("2027-01-15T10:00:00+01:00", "2027-01-15T09:00:00.000Z"),
    ):
        assert told in text
    put(store, replace(STATE, paused="tax\x1b[2J season", paused_at=T0))
    text = dueline("cron", "describe", "daily").out
    assert "paused (tax·[2J season)" in text


def test_describe_of_nothing_is_exit_code_3(dueline: Any) -> None:
    ran = dueline("cron", "describe", "daily")
    assert (ran.code, ran.out, ran.err) == (3, "", "dueline: daily: there is no schedule of this id\n")
    assert dueline("cron", "describe", "No Id").code == 2


def test_the_list_reads_like_a_crontab(dueline: Any, store: Any) -> None:
    put(store, STATE)
    put(store, replace(STATE, spec=replace(SPEC, id="other", handler="h"), paused="why not", paused_at=T0))
    views = dueline("cron", "list", "--json").lines("cron_list")
    assert [view["id"] for view in views] == ["daily", "other"]
    text = dueline("cron", "list").out
    assert "daily" in text
    assert "0 * * * *" in text
    assert "2027-01-15T10:00:00+01:00" in text
    assert "paused: why not" in text
    for words, ids in (
        (("--state", "paused"), ["other"]),
        (("--handler", "report"), ["daily"]),
        (("--source", "file:crontab"), []),
        (("--source", STATE.spec.source, "--state", "active"), ["daily"]),
    ):
        assert [v["id"] for v in dueline("cron", "list", *words, "--json").lines("cron_list")] == ids
    assert dueline("cron", "list", "--source", "nobody").err == "dueline: no schedule matches\n"


@pytest.mark.parametrize("word", STANDINGS)
def test_the_list_knows_every_state(dueline: Any, store: Any, word: str) -> None:
    fields: dict[str, dict[str, Any]] = {
        "active": {}, "paused": {"paused": "", "paused_at": T0}, "ended": {"ended": "max_occurrences"},
        "overdue": {"next_due": T0 - HOUR}, "failing": {"failures_in_row": 1, "paused": "", "paused_at": T0},
    }  # fmt: skip
    put(store, replace(STATE, **fields[word]))
    other = replace(STATE, spec=replace(SPEC, id="other"))
    put(store, other if word == "ended" else replace(other, ended="max_occurrences"))
    found = dueline("cron", "list", "--state", word, "--json").lines("cron_list")
    assert [view["id"] for view in found] == ["daily"]


@pytest.mark.parametrize("words", [("list",), ("describe", "daily"), ("pause", "daily"), ("delete", "daily")])
def test_an_unreachable_store_is_exit_code_5(dueline: Any, store: Any, words: tuple[str, ...]) -> None:
    store.cluster.reachable = False
    ran = dueline("cron", *words)
    assert (ran.code, ran.out) == (5, "")


# -- preview ------------------------------------------------------------------------------------------------

NEW_YORK = ("--tz", "America/New_York", "--after")


def preview(dueline: Any, store: Any, *words: str) -> Any:
    store.cluster.reachable = False  # none is needed
    return dueline("cron", "preview", *words)


def test_a_preview_is_one_array_of_instants_in_utc(dueline: Any, store: Any) -> None:
    words = ("30 2 * * *", *NEW_YORK, "2026-03-07T00:00:00Z", "--count", "3", "--json")
    assert preview(dueline, store, *words).json("cron_preview") == [
        "2026-03-07T07:30:00.000Z",
        "2026-03-08T07:00:00.000Z",  # 02:30 does not exist: right after the gap
        "2026-03-09T06:30:00.000Z",
    ]
    assert len(preview(dueline, store, "@daily", "--json").json("cron_preview")) == 10


def test_unusual_nights_are_marked(dueline: Any, store: Any) -> None:
    spring = preview(dueline, store, "30 2 * * *", *NEW_YORK, "2026-03-07T00:00:00Z", "--count", "3").out
    first, second, third = spring.splitlines()
    assert "2026-03-08 03:00:00-04:00  the clock goes forward by 1 hour right before it" in second
    assert "clock" not in first + third
    autumn = preview(dueline, store, "30 * * * *", *NEW_YORK, "2026-11-01T04:00:00Z", "--count", "4").out
    assert [line.partition("  this")[2] for line in autumn.splitlines()] == [
        "",
        " time comes twice: the first pass",
        " time comes twice: the second pass",
        "",
    ]


def test_a_preview_takes_the_policy(dueline: Any, store: Any) -> None:
    words = ("30 2 * * *", *NEW_YORK, "2026-03-07T12:00:00Z", "--count", "1", "--json")
    assert preview(dueline, store, *words, "--dst-gap", "skip").json("cron_preview") == [
        "2026-03-09T06:30:00.000Z"
    ]
    words += ("--exclude", "no=2026-03-08")
    assert preview(dueline, store, *words).json("cron_preview") == ["2026-03-09T06:30:00.000Z"]
    words = ("@every 90s", "--after", "2027-01-01T00:00:00Z", "--count", "2", "--json")
    assert preview(dueline, store, *words).json("cron_preview") == [
        "2027-01-01T00:01:30.000Z",
        "2027-01-01T00:03:00.000Z",
    ]


def test_a_preview_takes_phase_and_jitter_as_the_schedule_of_that_id_has_them(
    dueline: Any, store: Any
) -> None:
    words = ("@every 90s", "--after", "2027-01-01T00:00:00Z", "--count", "2", "--json")
    assert preview(dueline, store, *words, "--phase", "10s").json("cron_preview") == [
        "2027-01-01T00:00:10.000Z",
        "2027-01-01T00:01:40.000Z",
    ]
    spec = TimingSpec(schedule_id="poll", every_ms=90_000, jitter_ms=60_000)
    first = 1_798_761_690_000
    due = [timing_of(spec).due_of(nominal) for nominal in (first, first + 90_000)]
    shown = preview(dueline, store, *words, "--jitter", "1m", "--id", "poll").json("cron_preview")
    assert shown == [format_instant(at) for at in due]
    assert shown != [format_instant(first), format_instant(first + 90_000)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("61 * * * *",), "EXPR: "),
        (("@never",), "EXPR: "),
        (("0 0 31 2 *",), "EXPR: "),
        (("@daily", "--tz", "Mars/Base"), "--tz: "),
        (("@daily", "--after", "tomorrow"), "--after: "),
        (("@daily", "--count", "0"), "--count"),
        (("@daily", "--dst-gap", "x"), "--dst-gap: "),
    ],
)
def test_a_bad_preview_names_what_is_wrong(
    dueline: Any, store: Any, words: tuple[str, ...], told: str
) -> None:
    ran = preview(dueline, store, *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert told in ran.err
