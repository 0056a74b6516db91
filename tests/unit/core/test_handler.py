"""What a handler may answer, and what becomes of the run."""

import json
from datetime import timedelta

import pytest

from pipeline.core import handler
from pipeline.core.errors import InvalidInput
from pipeline.core.handler import (
    Cancel,
    Cancelled,
    Dead,
    DeadEnd,
    Fenced,
    InvalidPayload,
    Registry,
    Retry,
    Retrying,
    Snooze,
    Stopped,
    Succeeded,
    TimedOut,
    decide,
    encode_result,
    failure_of,
)
from pipeline.core.job import LATEST, Failure, Run
from pipeline.core.retry import RetryPolicy
from pipeline.core.verbs import RemoteError

NOW = 1_893_456_000_000


class Half:
    def random(self):
        return 0.5


def send(ctx, to, subject="hello"):
    return (ctx, to, subject)


def run_of(**changes):
    fields = {
        "job_id": "j",
        "occurrence_id": "j",
        "due_at": NOW,
        "run": 1,
        "queue": "default",
        "handler": "email.send",
        "created_at": NOW,
        "nominal_at": NOW,
        "idempotency_key": "j",
        "payload": b"{}",
    }
    return Run(**(fields | changes))


def answer(value=None, error=None, **changes):
    spec = Registry().add("email.send", send, max_attempts=3, timeout="90s", retry=RetryPolicy(base="1s"))
    return decide(spec, run_of(**changes), value=value, error=error, now=NOW, random=Half())


# -- decisions


def test_success():
    assert answer() == Succeeded(result=None)
    assert answer({"sent": 1}) == Succeeded(result=b'{"sent":1}')


def test_a_failure_waits_by_the_back_off_and_spends_an_attempt():
    decision = answer(error=ValueError("no route"), failures=1)
    assert decision == Retrying(
        at=NOW + 1_000, failures=2, error=Failure(type="ValueError", message="no route"), spends=True
    )


@pytest.mark.parametrize(
    ("failures", "limit", "dead"), [(1, None, False), (2, None, True), (2, 4, False), (0, 1, True)]
)
def test_the_attempts_are_limited_by_the_job_else_the_handler(failures, limit, dead):
    for error in (ValueError("no"), Retry(after="1s")):
        decision = answer(error=error, failures=failures, attempt_limit=limit)
        assert isinstance(decision, DeadEnd if dead else Retrying)
        if dead:
            assert decision == DeadEnd(reason="max_attempts", error=failure_of(error))


@pytest.mark.parametrize("how", ["value", "error"])
def test_verbs_may_be_returned_or_raised(how):
    assert answer(**{how: Retry(after="10s")}) == Retrying(
        at=NOW + 10_000, failures=1, error=Failure(type="Retry", message=""), spends=True
    )
    assert answer(**{how: Retry("busy")}).at == NOW + 500
    assert answer(**{how: Cancel("paid")}) == Cancelled(reason="paid")
    assert answer(**{how: Dead("no address")}) == DeadEnd(
        reason="dead_by_handler", error=Failure(type="Dead", message="no address")
    )


@pytest.mark.parametrize("how", ["value", "error"])
def test_an_invalid_payload_is_dead_at_once_and_says_so(how):
    assert answer(**{how: InvalidPayload("payload.to: missing")}) == DeadEnd(
        reason="invalid_payload", error=Failure(type="InvalidPayload", message="payload.to: missing")
    )


@pytest.mark.parametrize(("limit", "text"), [(None, "90 s"), (1_500, "1.5 s")])
def test_a_time_out_is_a_failure_that_names_its_limit(limit, text):
    decision = answer(error=TimedOut(), timeout_ms=limit)
    late = Failure(type="TimedOut", message=f"email.send did not come back within {text}")
    assert decision == Retrying(at=NOW + 500, failures=1, error=late, spends=True)
    assert answer(error=TimedOut(), failures=2, timeout_ms=limit) == DeadEnd(
        reason="max_attempts", error=late
    )


def test_a_stopped_run_ends_as_cancelled():
    assert answer(error=Stopped()) == Cancelled(reason="stopped")


def test_a_fenced_attempt_leaves_the_job_to_the_one_that_took_over():
    assert answer(error=Fenced("token 7 < 9")) == Cancelled(reason="token 7 < 9")


@pytest.mark.parametrize("kind", [Stopped, TimedOut])
def test_what_only_others_raise_is_no_verb_to_return(kind):
    assert isinstance(answer(kind()), Succeeded)


def test_a_coroutine_that_nobody_awaits_is_a_failure():
    async def late():
        raise AssertionError

    decision = answer(late())
    assert decision.error == Failure(
        type="NotAwaited", message="email.send returned a coroutine that nobody awaits"
    )


@pytest.mark.parametrize("how", ["value", "error"])
def test_a_snooze_spends_no_attempt_however_many_failed(how):
    assert answer(**{how: Snooze(for_=timedelta(minutes=1))}, failures=99) == Retrying(
        at=NOW + 60_000, failures=99, error=None, spends=False
    )


def test_no_retry_lies_beyond_the_last_instant():
    assert answer(error=Snooze(for_="10000w")).at == LATEST


def test_a_returned_exception_that_is_no_verb_is_a_result_like_any_other():
    assert isinstance(answer(ValueError("as data")), Succeeded)


@pytest.mark.parametrize(
    "make", [lambda: Retry(after="soon"), lambda: Snooze(for_="-1s")], ids=["Retry", "Snooze"]
)
def test_a_malformed_duration_is_told_where_it_is_written(make):
    with pytest.raises(InvalidInput):
        make()


# -- errors and results as data


def raised(error, cause=None):
    try:
        raise error from cause
    except Exception as caught:  # noqa: BLE001 - any error is data here
        return caught


def test_a_raised_error_keeps_its_trace():
    failure = failure_of(raised(KeyError("to")))
    assert (failure.type, failure.message) == ("KeyError", "'to'")
    assert "in raised" in failure.trace


def test_a_verb_raised_from_an_error_tells_of_that_error():
    assert failure_of(raised(Retry(after="1s"), ConnectionError("refused"))) == Failure(
        type="ConnectionError", message="refused"
    )


def test_an_error_of_another_process_is_what_it_told():
    told = Failure(type="KeyError", message="'to'", trace="there")
    assert failure_of(RemoteError(told)) is told
    assert failure_of(raised(Retry(after="1s"), RemoteError(told))) is told


def test_a_long_error_is_cut():
    failure = failure_of(raised(ValueError("x" * 100_000)))
    assert len(failure.message) == 2_000
    assert len(failure.trace) == 16_000
    assert failure.trace.endswith("x\n")


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError


def test_an_error_without_a_message_is_an_error_still():
    assert failure_of(Unprintable()).message == "(its message cannot be shown)"


class Leaving(Exception):
    def __str__(self):
        raise SystemExit(3)


def test_an_error_whose_message_ends_the_process_is_an_error_still():
    assert failure_of(Leaving()).message == "(its message cannot be shown)"
    assert "Leaving" in failure_of(raised(Leaving())).trace


@pytest.mark.parametrize(
    ("reason", "text"),
    [(None, "None"), ({"a": 1}, "{'a': 1}"), ("\ud800", "\\ud800"), ("x" * 3_000, "x" * 2_000)],
    ids=["None", "dict", "surrogate", "long"],
)
@pytest.mark.parametrize("how", ["value", "error"])
def test_whatever_a_handler_gives_as_a_reason_is_kept_as_text(how, reason, text):
    assert answer(**{how: Cancel(reason)}) == Cancelled(reason=text)
    assert answer(**{how: Dead(reason)}).error.message == text


def test_every_text_of_a_failure_is_utf_8():
    kind = type("E", (Exception,), {"__qualname__": "E\ud800"})
    failure = failure_of(raised(kind("bad \ud800 text")))
    assert (failure.type, failure.message) == ("E\\ud800", "bad \\ud800 text")
    assert "bad \\ud800 text" in failure.trace.encode().decode()


class LeavingDict(dict):
    def items(self):
        raise SystemExit(3)


class Hostile(dict):
    def items(self):
        raise Unprintable

    def __bool__(self):
        return True


NESTED = []
NESTED.append(NESTED)


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, float("nan"), "\ud800", NESTED, Hostile(a=1), LeavingDict(b=1), b"bytes"],
    ids=["object", "set", "nan", "surrogate", "nested", "hostile", "leaving", "bytes"],
)
def test_a_result_that_is_not_json_is_dropped_and_the_run_is_done(value):
    result = answer(value).result
    assert json.loads(result)["result_dropped"].startswith("not JSON: ")
    assert b"\n" not in result


def test_a_result_over_the_limit_is_dropped_and_the_run_is_done():
    limit = handler.RESULT_LIMIT
    assert encode_result("x" * (limit - 2)) == b'"' + b"x" * (limit - 2) + b'"'
    dropped = json.loads(encode_result("x" * (limit - 1)))
    assert dropped == {"result_dropped": f"{limit + 1} bytes of JSON are more than {limit}"}


def test_a_result_is_compact_utf_8():
    assert encode_result(["ü", {"a": 1}]) == '["ü",{"a":1}]'.encode()
    assert encode_result(False) == b"false"


def test_a_result_encoded_where_its_handler_ran_is_kept_as_it_is():
    assert encode_result(handler.Kept(b'"once"')) == b'"once"'
    assert encode_result(handler.Kept(None)) is None


def test_a_trace_that_cannot_be_made_is_said_to_be_so(monkeypatch):
    def refuse(error):
        raise SystemExit(3)

    monkeypatch.setattr("pipeline.core.handler.traceback.format_exception", refuse)
    assert failure_of(raised(ValueError("no"))).trace == "(its trace cannot be shown)"
