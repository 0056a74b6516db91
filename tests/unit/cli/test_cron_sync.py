"""`dueline cron sync` and `import`, over a store in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.job import Command
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.ports import Put

T0 = 1_800_000_000_000
NIGHTLY = ScheduleSpec(id="nightly", handler="report", cron="30 2 * * *", source="file:jobs.toml")
TOML = """
[schedules.nightly]
handler = "report"
cron = "30 2 * * *"

[schedules.poll]
handler = "inbox"
every = "90s"
"""


def put(store: Any, spec: ScheduleSpec) -> None:
    state = Schedule(
        incarnation=7,
        revision=1,
        spec=spec,
        created_at=T0,
        changed_at=T0,
        last_nominal=T0,
        next_nominal=T0 + 1,
    )
    home = store.layout.home_of_name(spec.id)
    store.cluster.append(
        Put(store.names.jobs, home, keys.schedule_key(spec.id), codec.SCHEDULE.encode(state))
    )


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, str | bytes], str]:
    def write(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def asked(store: Any) -> list[tuple[str, str | None]]:
    return [(command.verb, command.schedule_id) for command in store.commands]


def obeying(store: Any) -> None:
    outcomes = {"schedule.put": "created", "schedule.delete": "deleted", "schedule.create": "created"}
    store.owner = lambda command: {"outcome": outcomes[command.verb]}


# -- sync of a file -----------------------------------------------------------------------------------------


def test_a_file_is_made_what_there_is(dueline: Any, store: Any, file: Any) -> None:
    put(store, replace(NIGHTLY, cron="0 3 * * *"))
    put(store, replace(NIGHTLY, id="old"))
    put(store, replace(NIGHTLY, id="theirs", source="cli"))
    obeying(store)
    ran = dueline("cron", "sync", file("jobs.toml", TOML), "--json")
    told = "dueline: no live worker knows 1 handler, whose occurrences wait until one does: inbox\n"
    assert (ran.code, ran.err) == (0, told)  # of what is new
    assert ran.json("cron_sync") == {
        "source": "file:jobs.toml",
        "version": None,
        "dry_run": False,
        "create": ["poll"],
        "update": [
            {"id": "nightly", "changed": [{"field": "cron", "old": "0 3 * * *", "new": "30 2 * * *"}]}
        ],
        "delete": ["old"],
        "unchanged": [],
        "foreign": [],
        "outcomes": {"created": 2, "deleted": 1},
    }
    assert asked(store) == [
        ("schedule.put", "poll"),
        ("schedule.put", "nightly"),
        ("schedule.delete", "old"),
    ]
    poll, nightly, old = store.commands
    assert (poll.spec.every_ms, poll.spec.source) == (90_000, "file:jobs.toml")
    assert nightly.spec == NIGHTLY
    assert old.detail == {"source": "file:jobs.toml", "version": ""}


def test_a_dry_run_shows_the_diff_and_asks_nothing(dueline: Any, store: Any, file: Any) -> None:
    put(store, replace(NIGHTLY, cron="0 3 * * *"))
    put(store, replace(NIGHTLY, id="old"))
    ran = dueline("cron", "sync", file("jobs.toml", TOML), "--dry-run")
    assert (ran.code, store.commands) == (0, [])
    for told in ("+ poll", "~ nightly", '"0 3 * * *" -> "30 2 * * *"', "- old"):
        assert told in ran.out


def test_what_another_source_has_is_left_alone(dueline: Any, store: Any, file: Any) -> None:
    put(store, replace(NIGHTLY, source="app:shop"))
    obeying(store)
    path = file("jobs.toml", TOML)
    ran = dueline("cron", "sync", path, "--json")
    assert ran.code == 4
    assert ran.json("cron_sync")["foreign"] == [{"id": "nightly", "source": "app:shop"}]
    assert asked(store) == [("schedule.put", "poll")]
    ran = dueline("cron", "sync", path, "--dry-run")
    assert (ran.code, "! nightly" in ran.out) == (0, True)


def test_the_same_again_changes_nothing(dueline: Any, store: Any, file: Any) -> None:
    put(store, NIGHTLY)
    ran = dueline("cron", "sync", file("jobs.toml", TOML.split("[schedules.poll]")[0]), "--json")
    view = ran.json("cron_sync")
    assert (ran.code, view["unchanged"], view["outcomes"], store.commands) == (0, ["nightly"], {}, [])


def test_a_crontab_from_stdin_needs_a_name(dueline: Any, store: Any) -> None:
    obeying(store)
    text = "CRON_TZ=Europe/Berlin\n30 2 * * * dueline:report\n"
    ran = dueline("cron", "sync", "-", "--name", "ops", "--json", stdin=text)
    assert (ran.code, ran.json("cron_sync")["source"]) == (0, "file:ops")
    (command,) = store.commands
    assert (command.spec.handler, command.spec.tz, command.spec.source) == (
        "report",
        "Europe/Berlin",
        "file:ops",
    )
    ran = dueline("cron", "sync", "-", stdin=text)
    assert (ran.code, "--name is needed" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("jobs.toml", TOML.replace("30 2", "99 2"), "jobs.toml:4: cron: "),
        ("jobs.toml", TOML + TOML, "jobs.toml:"),
        ("jobs.toml", TOML.replace("every", "evry"), "jobs.toml:8: evry: "),
        ("jobs.toml", b"\xff\xfe", "jobs.toml:1: not UTF-8"),
        ("crontab", "0 10 * * * dueline:a\n@reboot dueline:b\n", "crontab:2: cron: @reboot"),
        ("crontab", "nonsense\n", "crontab:1: "),
    ],
)
def test_a_bad_file_is_refused_with_file_line_and_field_and_nothing_is_applied(
    dueline: Any, store: Any, file: Any, name: str, content: str | bytes, told: str
) -> None:
    put(store, NIGHTLY)
    ran = dueline("cron", "sync", file(name, content))
    assert (ran.code, ran.out, store.commands) == (2, "", [])
    assert ran.err.count("\n") == 1
    assert told in ran.err


def test_each_problem_of_a_file_has_its_line(dueline: Any, store: Any, file: Any) -> None:
    ran = dueline("cron", "sync", file("crontab", "x\n" * 30))
    assert (ran.code, store.commands) == (2, [])
    assert len(ran.err.splitlines()) == 21
    assert ran.err.splitlines()[-1] == "dueline: and 10 more"


def test_an_unknown_queue_stops_all_of_it(dueline: Any, store: Any, file: Any) -> None:
    ran = dueline("cron", "sync", file("jobs.toml", TOML + 'queue = "nowhere"\n'))
    assert (ran.code, ran.out, store.commands) == (2, "", [])
    assert "poll: queue: 'nowhere'" in ran.err


def test_what_an_owner_refuses_is_told(dueline: Any, store: Any, file: Any) -> None:
    def refuse(command: Command) -> dict[str, Any] | None:
        if command.schedule_id == "poll":
            return None
        return {"outcome": "refused", "reason": "payload: is too large"}

    store.owner = refuse
    ran = dueline("cron", "sync", file("jobs.toml", TOML), "--wait", "50ms", "--json")
    assert ran.code == 1
    assert ran.json("cron_sync")["outcomes"] == {"refused": 1, "unknown": 1}
    assert "nightly: refused: payload: is too large" in ran.err
    store.owner = lambda _command: {"outcome": "refused", "reason": "payload: is too large"}
    assert dueline("cron", "sync", file("jobs.toml", TOML)).code == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "give a FILE, or --app"),
        (("a", "--app", "b"), "give a FILE, or --app"),
        (("/nowhere/crontab",), "FILE: cannot read"),
        (("/nowhere/crontab", "--wait", "x"), "FILE: cannot read"),
    ],
)
def test_a_sync_of_nothing_is_refused(dueline: Any, words: tuple[str, ...], told: str) -> None:
    ran = dueline("cron", "sync", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert told in ran.err


# -- sync of an app -----------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "cronshop.py").write_text(
        "from pipeline import Dueline\n"
        "app = Dueline()\n"
        "@app.cron('30 2 * * *', id='nightly')\n"
        "@app.job('report')\n"
        "def report(ctx): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("cronshop", None)


def test_an_app_owns_what_it_declares_by_its_name_and_version(
    dueline: Any, store: Any, shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUELINE_APP_VERSION", "7")
    own = replace(NIGHTLY, source="app:cronshop", version="6")
    put(store, own)
    put(store, replace(own, id="removed"))
    store.owner = lambda command: {"outcome": "unchanged" if command.verb == "schedule.put" else "deleted"}
    ran = dueline("cron", "sync", "--app", "cronshop:app", "--json")
    view = ran.json("cron_sync")
    assert (ran.code, view["source"], view["version"]) == (0, "app:cronshop", "7")
    assert (view["unchanged"], view["delete"]) == (["nightly"], ["removed"])
    put_, deleted = store.commands
    assert put_.spec.version == "7"  # so that workers of version 6 know that they are older
    assert deleted.detail == {"source": "app:cronshop", "version": "7"}


def test_an_older_app_changes_nothing_and_is_told_so(
    dueline: Any, store: Any, shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUELINE_APP_NAME", "till")
    store.owner = lambda _command: {"outcome": "older", "reason": "version 8 is there"}
    ran = dueline("cron", "sync", "--app", "cronshop", "--json")
    assert (ran.code, ran.json("cron_sync")["source"]) == (4, "app:till")
    assert "nightly: older: version 8 is there" in ran.err


def test_an_app_that_cannot_be_loaded_is_invalid_input(dueline: Any, store: Any, shop: None) -> None:
    ran = dueline("cron", "sync", "--app", "cronshop:nothing")
    assert (ran.code, store.commands) == (2, [])


# -- import -------------------------------------------------------------------------------------------------

CRONTAB = """\
MAILTO=ops@example.com
CRON_TZ=Europe/Berlin
30 2 * * * /usr/bin/backup --all
@reboot /usr/bin/start
0 9 * * 1-5 dueline:report {"to": "board"}
"""


def test_a_crontab_is_imported_but_for_what_cannot_be(dueline: Any, store: Any) -> None:
    obeying(store)
    ran = dueline("cron", "import", "-", "--json", stdin=CRONTAB)
    view = ran.json("cron_import")
    assert (ran.code, [each["outcome"] for each in view["schedules"]]) == (0, ["created", "created"])
    assert [(each["line"], each["field"]) for each in view["left_out"]] == [(4, "cron")]
    assert [command.verb for command in store.commands] == ["schedule.create"] * 2
    assert {command.spec.source for command in store.commands} == {"cli"}  # kept by hand from now on
    assert {command.spec.tz for command in store.commands} == {"Europe/Berlin"}


def test_an_import_can_be_tried(dueline: Any, store: Any, file: Any) -> None:
    path = file("celery_app.py", 'beat_schedule = {"poll": {"task": "shop.poll", "schedule": 30.0}}\n')
    ran = dueline("cron", "import", path, "--dry-run", "--json")
    (each,) = ran.json("cron_import")["schedules"]
    assert (ran.code, store.commands) == (0, [])
    assert (each["outcome"], each["spec"]["handler"], each["spec"]["every"]) == (None, "shop.poll", "30s")
    text = dueline("cron", "import", "-", "--dry-run", stdin=CRONTAB).out
    assert "left out: stdin:4: cron: @reboot" in text
    assert text.splitlines()[-1].startswith("2 schedules, 1 left out")


def test_what_may_keep_imported_schedules_from_running_is_told(dueline: Any, store: Any) -> None:
    obeying(store)
    store.beat("w1", handlers=("script", "other"))
    ran = dueline("cron", "import", "-", stdin=CRONTAB)
    assert ran.err.splitlines() == [
        "dueline: no live worker knows 1 handler, whose occurrences wait until one does: report",
        "dueline: 1 program that a worker runs only if its DUELINE_SCRIPT_ALLOW lists it, else each run is dead:"
        " /usr/bin/backup",
    ]
    assert ran.out.splitlines()[-1] == "2 schedules, 1 left out, 1 note"
    store.beat("w2", handlers=("report",))
    text = dueline("cron", "import", "-", stdin='0 9 * * 1-5 dueline:report {"to": "board"}\n')
    assert (text.err, text.out.splitlines()[-1]) == ("", "1 schedule, 0 left out, 1 note")


def test_a_trial_names_the_programs_and_of_many_only_some(dueline: Any, store: Any) -> None:
    ran = dueline(
        "cron", "import", "-", "--dry-run", stdin="".join(f"0 {n} * * * /bin/p{n}\n" for n in range(7))
    )
    assert ran.err == (
        "dueline: 7 programs that a worker runs only if its DUELINE_SCRIPT_ALLOW lists it, else each run is dead:"
        " /bin/p0, /bin/p1, /bin/p2, /bin/p3, /bin/p4 …\n"
    )


def test_a_sync_tells_the_same_of_what_it_creates(dueline: Any, store: Any, file: Any) -> None:
    obeying(store)
    path = file("crontab", "0 9 * * * /bin/p\n0 8 * * * dueline:report\n")
    ran = dueline("cron", "sync", path)
    assert "no live worker knows 2 handlers, whose occurrences wait until one does: report, script" in ran.err
    assert "1 program that a worker runs only if" in ran.err


def test_what_is_there_stays_and_what_is_refused_is_told(dueline: Any, store: Any) -> None:
    def answer(command: Command) -> dict[str, Any]:
        if command.spec is not None and command.spec.handler == "report":
            return {"outcome": "refused", "reason": "payload: is too large"}
        return {"outcome": "existing"}

    store.owner = answer
    ran = dueline("cron", "import", "-", "--json", stdin=CRONTAB)
    assert ran.code == 4
    outcomes = [each["outcome"] for each in ran.json("cron_import")["schedules"]]
    assert outcomes == ["existing", "refused"]
    assert "payload: is too large" in ran.err


def test_a_file_that_is_none_of_these_is_refused(dueline: Any, store: Any, file: Any) -> None:
    ran = dueline("cron", "import", file("beat.py", "def ("))
    assert (ran.code, ran.out, store.commands) == (2, "", [])
    assert "beat.py:1" in ran.err
