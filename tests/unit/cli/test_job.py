"""`dueline job` over a store in memory; its JSON has the schemas in schemas/cli."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.job import AckState, Failure


def lines(*requests: Any) -> str:
    return "".join(
        f"{request if isinstance(request, str) else json.dumps(request)}\n" for request in requests
    )


# -- create -------------------------------------------------------------------------------------------------


def test_create_answers_id_status_and_due_time(dueline: Any, store: Any) -> None:
    ran = dueline("job", "create", "email.send", "--payload", '{"to": "a@b"}', "--in", "10m", "--json")
    (run,) = store.runs()
    assert ran.code == 0
    assert ran.json("job_create") == {
        "id": run.job_id,
        "status": "created",
        "due_at": "2027-01-15T08:10:00.000Z",
    }
    assert run.payload == b'{"to":"a@b"}'


def test_create_says_the_same_to_people(dueline: Any, store: Any) -> None:
    ran = dueline("job", "create", "email.send", "--at", "2030-01-31T09:30:00+02:00")
    (run,) = store.runs()
    assert ran.out == f"created {run.job_id}, due 2030-01-31T07:30:00.000Z\n"


def test_every_option_arrives(dueline: Any, store: Any) -> None:
    store.add_queues({"mail": 2})
    dueline(
        *("job", "create", "h", "--now", "--idempotency-key", "i", "--queue", "mail", "--max-attempts", "3"),
        *("--timeout", "2s", "--serial", "s", "--label", "a=1", "--label", "b=x=y", "--header", "h="),
    )
    (run,) = store.runs()
    assert (run.due_at, run.idempotency_key, run.queue) == (store.clock.now(), "i", "mail")
    assert (run.attempt_limit, run.timeout_ms, run.serial) == (3, 2_000, "s")
    assert (run.labels, run.headers) == ({"a": "1", "b": "x=y"}, {"h": ""})


def test_a_payload_comes_from_a_file_or_stdin(dueline: Any, store: Any, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"n": 1}')
    dueline("job", "create", "h", "--now", "--payload", f"@{tmp_path / 'p.json'}")
    dueline("job", "create", "h", "--now", "--payload", "-", stdin='{"n": 2}')
    assert {run.payload for run in store.runs()} == {b'{"n":1}', b'{"n":2}'}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "HANDLER"),
        (("No",), "HANDLER"),
        (("h",), "one of --at, --in, --now is needed"),
        (("h", "--at", "2030-01-01T00:00:00"), "--at"),
        (("h", "--at", "x"), "--at"),
        (("h", "--in", "10"), "--in"),
        (("h", "--now", "--in", "1s"), "--in"),
        (("h", "--now", "--at", "2030-01-01T00:00:00Z"), "--at"),
        (("h", "--now", "--payload", "{"), "--payload"),
        (("h", "--now", "--payload", "[]"), "--payload"),
        (("h", "--now", "--payload", '{"x": NaN}'), "--payload"),
        (("h", "--now", "--payload", "@/no/such/file"), "--payload"),
        (("h", "--now", "--payload", '{"x":' * 5_000 + "0" + "}" * 5_000), "--payload: nested too deeply"),
        (("h", "--now", "--payload", '{"x": "' + "y" * 1024 * 1024 + '"}'), "--payload"),
        (("h", "--now", "--label", "a"), "--label"),
        (("h", "--now", "--header", "a"), "--header"),
        (("h", "--now", "--queue", "nosuch"), "--queue"),
        (("h", "--now", "--max-attempts", "0"), "--max-attempts"),
        (("h", "--now", "--max-attempts", "x"), "--max-attempts"),
        (("h", "--now", "--timeout", "0s"), "--timeout"),
        (("h", "--now", "--idempotency-key", "a\0b"), "--idempotency-key"),
        (("h", "--now", "--key", ""), "--key: is empty"),
        (("h", "--now", "--key", "k" * 513), "--key: has 513 bytes"),
        (("h", "--now", "--key", "k", "--unique", "soon"), "--unique: is neither finished nor started"),
        (("h", "--now", "--key", "k", "--on-conflict", "win"), "--on-conflict: 'win' is none of"),
        (("h", "--now", "--unique", "started"), "--unique: needs a key"),
        (("h", "--now", "--on-conflict", "reject"), "--on-conflict: needs a key"),
        (("h", "--now", "--wait", "5"), "--wait: '5' is no duration"),
        (("h", "--now", "--spread", "wide"), "--spread: 'wide' is no duration"),
        (("h", "--now", "--priority", "1"), "--priority: not supported yet"),
        (("h", "--now", "--key"), "--key"),
        (("h", "--now", "--wait"), "--wait"),
        (("h", "--now", "--priority"), "--priority: not supported yet"),
        (("h", "--file", "-"), "--file"),
        (("--now", "--file", "-"), "--file"),
        (("--file", "/no/such/file"), "--file"),
    ],
)
def test_bad_input_is_one_line_naming_the_option_and_stores_nothing(
    dueline: Any, store: Any, words: tuple[str, ...], told: str
) -> None:
    ran = dueline("job", "create", *words)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    assert ran.err.count("\n") == 1
    assert store.jobs() == []


def test_a_wrong_setting_keeps_its_name(dueline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUELINE_QUEUE", "NO")
    ran = dueline("job", "create", "h", "--now")
    assert ran.code == 2
    assert ran.err.startswith("dueline: DUELINE_QUEUE: ")


def test_an_unreachable_store_is_exit_code_5(dueline: Any, store: Any) -> None:
    store.cluster.reachable = False
    ran = dueline("job", "create", "h", "--now")
    assert (ran.code, ran.out) == (5, "")
    assert "no broker" in ran.err


def test_a_handler_that_no_worker_knows_is_accepted_with_a_warning(dueline: Any, store: Any) -> None:
    store.beat("w1", handlers=("other",))
    ran = dueline("job", "create", "email.send", "--now")
    assert (ran.code, len(store.runs())) == (0, 1)
    assert "no live worker knows the handler 'email.send'" in ran.err
    assert "dueline worker --app" in ran.err
    store.beat("w2", handlers=("email.send",))
    assert dueline("job", "create", "email.send", "--now").err == ""


# -- create --file ------------------------------------------------------------------------------------------


def test_a_file_is_streamed(dueline: Any, store: Any, tmp_path: Path) -> None:
    store.beat("w1", handlers=("h",))
    file = tmp_path / "jobs.jsonl"
    file.write_text(
        lines(
            {"handler": "h", "in": "1s", "payload": {"n": 1}, "labels": {"a": "1"}, "max_attempts": 2},
            "",
            {"handler": "h", "at": "2030-01-01T00:00:00Z", "idempotency_key": "i", "priority": None},
        )
    )
    ran = dueline("job", "create", "--file", str(file), "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json("job_create_file") == {"accepted": 2}
    assert {run.idempotency_key for run in store.runs()} >= {"i"}
    assert len(store.runs()) == 2


def test_a_file_may_be_stdin(dueline: Any, store: Any) -> None:
    ran = dueline("job", "create", "--file", "-", stdin=lines({"handler": "h", "in": "1s"}))
    assert ran.out == "accepted 1 job\n"
    assert "no live worker" in ran.err
    assert len(store.runs()) == 1


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"handler": "h", "in": "soon"}, "line 4: in: "),
        ({"handler": "h", "at": "2030-01-01T00:00:00"}, "line 4: at: "),
        ({"in": "1s"}, "line 4: handler: missing"),
        ({"handler": "h", "in": "1s", "key": ""}, "line 4: key: is empty"),
        ({"handler": "h", "in": "1s", "unique": "started"}, "line 4: unique: needs a key"),
        ({"handler": "h", "in": "1s", "priority": 1}, "line 4: priority: not supported yet"),
        ({"handler": "h", "in": "1s", "nonsense": 1}, "line 4: nonsense: unknown option"),
        ({"handler": "h", "in": "1s", "queue": "nosuch"}, "line 4: queue: "),
        ("[]", "line 4: line: is not a JSON object"),
        ("{", "line 4: line: is not JSON"),
        ("[" * 5_000, "line 4: line: nested too deeply"),
    ],
)
def test_a_bad_line_ends_the_file_and_says_what_is_stored(
    dueline: Any, store: Any, bad: Any, told: str
) -> None:
    good = {"handler": "h", "in": "1s"}
    ran = dueline("job", "create", "--file", "-", stdin=lines(good, "", good, bad, good))
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    assert "the 2 jobs before it are stored" in ran.err
    assert ran.err.count("\n") == 1
    assert len(store.runs()) == 2


def test_a_bad_first_line_stores_nothing(dueline: Any, store: Any) -> None:
    ran = dueline("job", "create", "--file", "-", stdin=lines({"handler": "h"}))
    assert "line 1: at: missing: say when it is due, by at or in" in ran.err
    assert ran.err.endswith("; nothing is stored\n")


def test_a_line_without_end_is_refused(dueline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.cli.job.LINE_LIMIT", 100)
    ran = dueline("job", "create", "--file", "-", stdin="x" * 1000)
    assert (ran.code, "line 1: line: is longer than 100 bytes" in ran.err) == (2, True)


# -- get and list -------------------------------------------------------------------------------------------


def created(dueline: Any, *words: str) -> str:
    answer = dueline("job", "create", *words, "--json").json("job_create")
    return str(answer["id"])


def test_get_follows_a_job_through_its_life(dueline: Any, store: Any) -> None:
    id_ = created(dueline, "email.send", "--now")
    (run,) = store.runs()
    assert dueline("job", "get", id_, "--json").json("job_get")["status"] == "pending"
    store.fire(run)
    store.ack(run, AckState.STARTED, started_at=store.clock.now())
    view = dueline("job", "get", id_, "--json").json("job_get")
    assert (view["status"], view["runs"][0]["attempts"][0]["outcome"]) == ("running", None)
    store.ack(run, AckState.DEAD, error=Failure(type="ValueError", message="no\nway", trace="…"))
    view = dueline("job", "get", id_, "--json").json("job_get")
    assert (view["status"], view["runs"][0]["attempts"][0]["token"]) == ("dead", "1001")
    text = dueline("job", "get", id_).out
    assert f"id           {id_}\n" in text
    assert text.splitlines()[-4].endswith("  ValueError: no")
    assert text.endswith("\ntrace of run 1, attempt 1:\n  …\n")


def test_get_shows_all_that_is_known_of_a_job_before_it_fires(dueline: Any, store: Any) -> None:
    words = ("--payload", '{"to": "a@b"}', "--in", "1h", "--label", "b=2", "--label", "a=1", "--serial", "s")
    id_ = created(dueline, "email.send", *words)
    assert dueline("job", "get", id_).out.splitlines() == [
        f"id           {id_}",
        "handler      email.send",
        "status       pending",
        "due_at       2027-01-15T09:00:00.000Z",
        "created_at   2027-01-15T08:00:00.000Z",
        "queue        default",
        "labels       a=1 b=2",
        "serial       s",
        'payload      {"to":"a@b"}',
    ]
    view = dueline("job", "get", id_, "--json").json("job_get")
    assert (view["payload"], view["labels"]) == ('{"to":"a@b"}', {"a": "1", "b": "2"})


RESULT = b'{"paid": 12345678901234567890123456789, "ok": true, "note": null, "name": "M\xc3\xbcller"}'


def test_a_result_is_json_with_every_digit_and_the_log_is_shown(dueline: Any, store: Any) -> None:
    id_ = created(dueline, "email.send", "--now")
    (run,) = store.runs()
    store.fire(run)
    store.ack(run, AckState.SUCCEEDED, result=RESULT, log_tail="one\n\x1b[2Jtwo")
    text = dueline("job", "get", id_).out
    assert f"result       {RESULT.decode()}\n" in text
    assert "ended_at     2027-01-15T08:00:00.000Z\n" in text
    assert text.endswith("\nlog of run 1, attempt 1:\n  one\n  ·[2Jtwo\n")


def test_nothing_in_a_job_moves_the_terminal_and_a_long_payload_is_cut(dueline: Any, store: Any) -> None:
    payload = json.dumps({"x": "\u009b2J" + "y" * 5_000}, ensure_ascii=False, separators=(",", ":"))
    id_ = created(dueline, "email.send", "--now", "--payload", payload, "--label", "a=1\x1bc")
    text = dueline("job", "get", id_).out
    assert "labels       a=1·c\n" in text
    (shown,) = [line for line in text.splitlines() if line.startswith("payload")]
    assert shown.startswith('payload      {"x":"·2Jyyy')
    assert shown.endswith(f"y… ({len(payload)} characters; all of them with --json)")
    assert dueline("job", "get", id_, "--json").json("job_get")["payload"] == payload


def test_get_shows_a_run_nobody_started(dueline: Any, store: Any) -> None:
    id_ = created(dueline, "email.send", "--now")
    store.fire(store.runs()[0])
    text = dueline("job", "get", id_).out
    assert "status       queued" in text
    assert "2027-01-15T08:00:00.000Z" in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("id_", "code", "told"), [("nonsense", 2, "ID: "), ("j" + "0" * 26, 3, "nothing is stored")]
)
def test_get_of_no_job(dueline: Any, id_: str, code: int, told: str) -> None:
    ran = dueline("job", "get", id_, "--json")
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err


def test_list_is_one_object_a_line(dueline: Any, store: Any) -> None:
    ids = {created(dueline, "h", "--in", f"{n}m", "--label", f"n={n}") for n in range(1, 4)}
    listed = dueline("job", "list", "--json").lines("job_list")
    assert {job["id"] for job in listed} == ids
    (one,) = dueline("job", "list", "--json", "--label", "n=2").lines("job_list")
    assert (one["labels"], one["due_at"]) == ({"n": "2"}, "2027-01-15T08:02:00.000Z")
    header, first = dueline("job", "list", "--limit", "1").out.splitlines()
    assert header.split() == ["ID", "STATUS", "DUE_AT", "QUEUE", "HANDLER", "KEY"]
    assert first.split()[1:] == ["pending", "2027-01-15T08:01:00.000Z", "default", "h"]
    (last,) = dueline("job", "list", "--limit", "1", "--order", "-due", "--json").lines("job_list")
    assert last["due_at"] == "2027-01-15T08:03:00.000Z"
    window = ("--due-from", "2027-01-15T08:02:00Z", "--due-to", "2027-01-15T08:03:00Z", "--status", "pending")
    assert len(dueline("job", "list", "--handler", "h", *window, "--json").lines("job_list")) == 1
    for words in ((), ("--json",)):
        ran = dueline("job", "list", "--handler", "other", *words)
        assert ran == (0, "", "dueline: no job matches\n")
    assert dueline("job", "list").err == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--status", "succeeded"), "--status: succeeded needs a server"),
        (("--status", "nonsense"), "--status"),
        (("--due-from", "x"), "--due-from"),
        (("--due-to", "2030-01-01T00:00:00"), "--due-to"),
        (("--label", "x"), "--label"),
        (("--limit", "0"), "--limit"),
    ],
)
def test_a_bad_filter_names_its_option(dueline: Any, words: tuple[str, ...], told: str) -> None:
    ran = dueline("job", "list", *words)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_two_times_are_refused_in_the_words_of_the_command_line(dueline: Any, store: Any) -> None:
    ran = dueline("job", "create", "h", "--at", "2030-01-01T00:00:00Z", "--in", "1s")
    assert (ran.code, store.runs()) == (2, [])
    assert "--at excludes --in" in ran.err
    assert "in_" not in ran.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"handler": "h", "in": "1s", "in": "2s"}', "line: has the name 'in' twice"),
        ('{"handler": "h", "in": "1s", "payload": {"a": 1, "a": 2}}', "line: has the name 'a' twice"),
        ('{"handler": "h", "in": "1s", "in_": "2s"}', "in: excludes in_"),
        ('{"handler": "h", "in": "1s", "at": "2030-01-01T00:00:00Z"}', "at: excludes in:"),
        ('{"handler": "h", "in": "1s", "": 1}', "'': unknown option"),
        ('{"handler": "h", "in": "1s", "labels": {"": "x"}}', "labels: holds an empty name"),
    ],
)
def test_an_ambiguous_line_is_refused(dueline: Any, store: Any, line: str, said: str) -> None:
    ran = dueline("job", "create", "--file", "-", stdin=lines({"handler": "h", "in": "1s"}, line))
    assert (ran.code, len(store.runs())) == (2, 1)
    assert f"line 2: {said}" in ran.err
    assert "; the job before it is stored" in ran.err
