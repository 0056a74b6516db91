"""Crontab text as people have it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.core.schedule import ScheduleSpec, spec_to_json
from pipeline.crontab import Parsed, parse_crontab, parsed

FEW = 2_000
"""Schedules that a file may have here, so that too many are soon read."""

USERS = b"""\
# Edit this file to introduce tasks to be run by cron.
#
# For example, you can run a backup of all your user accounts
# at 5 a.m every week with:
# 0 5 * * 1 tar -zcf /var/backups/home.tgz /home/
#
# m h  dom mon dow   command
SHELL=/bin/bash
PATH = /usr/local/bin:/usr/bin:/bin
MAILTO="ops@example.com"

17 3,15 * * *   /usr/bin/certbot renew --quiet --no-self-upgrade
@daily          /usr/sbin/logrotate /etc/logrotate.conf >/dev/null 2>&1
@reboot         /usr/local/bin/warm-cache
*/5 * * * *     cd /srv/shop && php artisan schedule:run >> /dev/null 2>&1
0 4 * * sun     /usr/local/bin/report --title "Week of \\%V" 'all shops'
0 22 * * 1-5    mail -s "It's 10pm" joe%Joe,%%Where are your kids?%
5 0 * * *       $HOME/bin/daily.job >> $HOME/tmp/out 2>&1
"""

DEBIAN = b"""\
# /etc/crontab: system-wide crontab
SHELL=/bin/sh
# m h dom mon dow user\tcommand
17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly
25 6\t* * *\tbackup\t/usr/local/bin/save
"""


def read(text: str | bytes, **options: Any) -> Parsed:
    content = text if isinstance(text, bytes) else text.encode()
    return parse_crontab(content, source="file:jobs", name="jobs.cron", **options)


def one(text: str) -> ScheduleSpec:
    (spec,) = read(text).whole()
    return spec


def payload(spec: ScheduleSpec) -> Any:
    return json.loads(spec.payload)


def problems(parsed: Parsed) -> list[tuple[int, str]]:
    return [(problem.line, problem.field) for problem in parsed.problems]


def test_a_users_crontab_is_carried_over_and_what_is_not_is_told_by_line() -> None:
    parsed = read(USERS)
    assert [(spec.cron, spec.handler, payload(spec)) for spec in parsed.specs] == [
        ("17 3,15 * * *", "script",
         {"command": "/usr/bin/certbot", "args": ["renew", "--quiet", "--no-self-upgrade"]}),
        ("@daily", "script", {"command": "/usr/sbin/logrotate", "args": ["/etc/logrotate.conf"]}),
        ("0 4 * * sun", "script",
         {"command": "/usr/local/bin/report", "args": ["--title", "Week of %V", "all shops"]}),
        ("0 22 * * 1-5", "script",
         {"command": "mail", "args": ["-s", "It's 10pm", "joe"], "stdin": "Joe,\n\nWhere are your kids?\n"}),
    ]  # fmt: skip
    assert problems(parsed) == [(14, "cron"), (15, "command"), (18, "command")]
    assert [(note.line, note.field) for note in parsed.notes] == [
        (8, ""), (9, ""), (10, ""), (12, "tz"), (13, "command"),
    ]  # fmt: skip
    assert {spec.source for spec in parsed.specs} == {"file:jobs"}


def test_sync_takes_all_or_nothing_and_names_file_line_and_field() -> None:
    with pytest.raises(InvalidInput) as caught:
        read(USERS).whole()
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("jobs.cron:14: cron: @reboot")
    assert [line.split(": ")[0] for line in lines] == [f"jobs.cron:{n}" for n in (14, 15, 18)]


def test_what_a_program_reads_is_part_of_what_its_line_is_called_after() -> None:
    """Two lines that differ in it are two schedules, and keep their ids when their order changes."""
    first, second = (one(f"0 8 * * * mail joe%{text}\n") for text in ("rent", "tax"))
    assert first.id != second.id
    assert {spec.id for spec in read("0 8 * * * mail joe%tax\n0 9 * * * mail joe%rent\n").whole()} == {
        first.id,
        second.id,
    }
    assert one("0 8 * * * mail joe\n").id == one("0 8 * * * mail joe%\n").id


def test_a_long_list_of_problems_is_cut_short() -> None:
    with pytest.raises(InvalidInput, match="and 5 more") as caught:
        read("@reboot a\n" * 25).whole()
    assert len(str(caught.value).splitlines()) == 21


def test_the_user_column_of_a_system_crontab_is_told() -> None:
    parsed = read(DEBIAN)
    assert [problem.text.split(":")[0] for problem in parsed.problems] == [
        "'root' looks like the user column of a system crontab",
        "'backup' looks like the user column of a system crontab",
    ]
    assert read("1 1 * * * www-data\t/bin/a\n").problems[0].field == "command"
    assert payload(one("1 1 * * * git gc\n")) == {"command": "git", "args": ["gc"]}


@pytest.mark.parametrize("name", ["CRON_TZ", "TZ"])
def test_a_zone_holds_for_the_lines_below(name: str) -> None:
    text = f'0 1 * * * a\n{name}="Europe/Berlin"\n0 1 * * * b\n{name}=\n0 1 * * * c\n'
    assert [spec.tz for spec in read(text, tz="Asia/Tokyo").whole()] == [
        "Asia/Tokyo",
        "Europe/Berlin",
        "Asia/Tokyo",
    ]


def test_an_unknown_zone_is_told_by_line() -> None:
    assert problems(read("CRON_TZ=Europe/Atlantis\n0 1 * * * b\n")) == [(2, "tz")]


def test_the_zone_that_was_assumed_is_told_once() -> None:
    notes = [note for note in read("0 1 * * * a\n0 2 * * * b\n").notes if note.field == "tz"]
    assert [(note.line, "UTC" in note.text) for note in notes] == [(1, True)]
    assert not read("CRON_TZ=Europe/Berlin\n0 1 * * * a\n").notes


def test_variables_that_are_not_the_daemons_reach_the_program() -> None:
    parsed = read("APP_ENV=live\nMAILTO=a@b\n0 1 * * * A=1 b\n")
    assert payload(parsed.specs[0]) == {"command": "b", "env": {"APP_ENV": "live", "A": "1"}}
    assert "DUELINE_SCRIPT_ENV" in parsed.notes[0].text


def test_an_id_stays_the_same_when_the_time_changes() -> None:
    assert one("0 1 * * * /opt/save --all").id == one("30 2 * * 1 /opt/save  '--all'").id
    assert one("0 1 * * * /opt/save --all").id != one("0 1 * * * /opt/save --some").id
    assert one("0 1 * * * /opt/save --all").id.startswith("save-all-")


def test_the_same_command_twice_has_two_ids() -> None:
    first, second = read("0 1 * * * a\n0 2 * * * a\n").whole()
    assert second.id == f"{first.id}-2"


def test_a_line_of_ours_runs_a_handler_with_a_payload() -> None:
    spec = one('0 1 * * *  dueline:report.nightly  {"month": "last", "share": "5%"}')
    assert (spec.handler, payload(spec)) == ("report.nightly", {"month": "last", "share": "5%"})
    assert one("0 1 * * * dueline:report.nightly").payload == b"{}"


def test_options_stand_in_a_comment_above_the_line() -> None:
    text = """
# dueline: id=nightly overlap=buffer_all(3) timeout=2h max_attempts=3 labels={"team": "a b"} note="it is = big"
# a comment of people, and a variable
SHELL=/bin/sh
30 2 * * * /opt/report
@every 90s dueline:tick
"""
    nightly, tick = read(text).whole()
    assert nightly.id == "nightly"
    assert (nightly.overlap, nightly.timeout_ms, nightly.attempt_limit) == ("buffer_all(3)", 7_200_000, 3)
    assert (nightly.labels, nightly.note) == ({"team": "a b"}, "it is = big")
    assert (tick.every_ms, tick.overlap) == (90_000, "skip")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("# dueline: id=a\n# dueline: id=b\n0 1 * * * x", [(2, "")]),
        ("0 1 * * * x\n# dueline: id=a", [(2, "")]),
        ("# dueline: overlapp=skip\n0 1 * * * x", [(1, "overlapp")]),
        ("# dueline: handler=b\n0 1 * * * x", [(1, "handler")]),
        ("# dueline: id=a id=b\n0 1 * * * x", [(1, "id")]),
        ("# dueline: id=\n0 1 * * * x", [(1, "id")]),
        ("# dueline: nightly\n0 1 * * * x", [(1, "")]),
        ('# dueline: labels={"a": 1, "a": 2}\n0 1 * * * x', [(1, "labels")]),
        ("# dueline: labels={\n0 1 * * * x", [(1, "labels")]),
        ("# dueline: overlap=never\n0 1 * * * x", [(2, "overlap")]),
        ("# dueline: id=A\n0 1 * * * x", [(2, "id")]),
        ("# dueline: id=a\n0 1 * * * x\n# dueline: id=a\n0 2 * * * y", [(4, "id")]),
        ("0 1 * * * dueline:", [(1, "handler")]),
        ("0 1 * * * dueline:A", [(1, "handler")]),
        ("0 1 * * * dueline:a 7", [(1, "payload")]),
        ("0 1 * * * dueline:a {]", [(1, "payload")]),
        ('0 1 * * * dueline:a {"a": NaN}', [(1, "payload")]),
        ("0 1 * * * dueline:a " + "[" * 5000, [(1, "payload")]),
        ("0 1 * * *", [(1, "command")]),
        ("@daily", [(1, "command")]),
        ("@Reboot x", [(1, "cron")]),
        ("0 1 * *", [(1, "cron")]),
        ("61 1 * * * x", [(1, "cron")]),
        ("0 0 30 2 * x", [(1, "cron")]),
        ("@every x y", [(1, "every")]),
        ("@sometimes x", [(1, "cron")]),
        ("0 1 * * *\u00a0x", [(1, "command")]),
        ("0\u00a01 * * * * x", [(1, "cron")]),
    ],
)
def test_each_mistake_is_told_by_line_and_field(text: str, at: list[tuple[int, str]]) -> None:
    assert problems(read(text)) == at


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("space", [" ", "\t", " \t "])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_tabs_line_ends_and_byte_order_marks_make_no_difference(end: str, space: str, mark: bytes) -> None:
    lines = ["# x", "CRON_TZ=Europe/Berlin", "", "0 1 * * 5 /bin/a b", ""]
    text = end.join(line.replace(" ", space) for line in lines)
    assert spec_to_json(read(mark + text.encode()).whole()[0]) == spec_to_json(one("\n".join(lines)))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"\n\n0 1 * * * a\xff\n", "jobs.cron:3: not UTF-8: byte 0xff"),
        ("0 1 * * * a\n".encode("utf-16"), "jobs.cron:1: not UTF-8"),
        (b"0 1 * * * a\n0 1 * * * b\0c\n", "jobs.cron:2: control character 0x0"),
        (b"0 1 * * * a\r0 1 * * * b\n", "jobs.cron:1: control character 0x0d"),
        (b"#" * (10 * 1024 * 1024), "jobs.cron: longer than 4194304 bytes"),
        (
            b"0 1 * * * a\n" * (FEW + 5),
            f"jobs.cron:{FEW + 1}: more than 2000 schedules",
        ),
        (b"x\n" * 100_000, f"jobs.cron:{FEW + 1}: more than 2000 schedules"),
        (b"A=1\n" * 100_000, "jobs.cron:8001: more of this file would be left out"),
        (
            b"0 1 * * *\n" + b"A" * 30_000 + b"=" + b"b" * 40_000 + b"\n0 1 * * * a\n" * 1_900,
            "take more than",
        ),
    ],
    ids=["latin1", "utf16", "nul", "cr", "10MB", "schedules", "100k-lines", "100k-variables", "environment"],
)
def test_a_hostile_file_is_refused_as_a_whole(
    content: bytes, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsed, "SCHEDULE_LIMIT", FEW)
    with pytest.raises(InvalidInput) as caught:
        read(content)
    assert where in str(caught.value)


def test_100_000_lines_of_comments_are_no_schedules() -> None:
    assert read(b"# x\n" * 100_000).specs == ()


@pytest.mark.parametrize(
    "unit", ["\\%", "%", "'", '"', "a ", "\\", "{}", "$", "* ", "~", "a=b ", "@every ", "=", "#", "dueline:"]
)
@pytest.mark.parametrize(
    "head", ["0 1 * * * /bin/a ", "", "# dueline: a=", "0 1 * * * dueline:a ", "# dow ", "A="]
)
def test_a_line_of_300_kilobytes_is_read_at_once(head: str, unit: str) -> None:
    read(head + unit * (300_000 // len(unit)))


WORDS = st.sampled_from(
    ["0", "*", "*/5", " ", "\t", "\n", "\r\n", "@daily ", "@reboot", "@every ", "90s", "/bin/a", "root ", "MAILTO=x",
     "CRON_TZ=", "Europe/Berlin", "# ", "dueline:", "id=a ", "labels={", '"', "'", "\\",
     "%", "$", "|", "{}", "=", "\0", "é"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200), st.lists(WORDS, max_size=40).map(lambda words: "".join(words).encode())
    )
)
def test_any_bytes_are_a_crontab_or_invalid_input(content: bytes) -> None:
    try:
        parsed = read(content)
    except InvalidInput as error:
        assert error.field.startswith("jobs.cron")  # noqa: PT017 - either way is right
    else:
        assert len({spec.id for spec in parsed.specs}) == len(parsed.specs)
