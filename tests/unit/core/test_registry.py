"""What a handler may be, and how handlers are found by name."""

import functools
import json
from datetime import timedelta

import pytest

from pipeline.core.errors import InvalidInput
from pipeline.core.job import AttemptRecord, DeadLetter, Failure, Run
from pipeline.core.registry import DeadJob, Pool, Registry
from pipeline.core.retry import RetryPolicy


def send(ctx, to, subject="hello"):
    return (ctx, to, subject)


def send_whole(ctx, payload):
    return (ctx, payload)


async def send_async(ctx, **payload):
    return payload


class Sender:
    async def __call__(self, ctx):
        return ctx


def without_parameters(): ...


def with_keywords_only(*, ctx): ...


def generator(ctx):
    yield ctx


async def async_generator(ctx):
    yield ctx


class Quiet:
    def before(self, ctx): ...


class Waiting:
    async def after(self, ctx, outcome): ...


# -- registration


def test_a_handler_is_registered_with_its_settings():
    registry = Registry()
    policy = RetryPolicy(base="5ms")
    spec = registry.add(
        "email.send", send, max_attempts=7, timeout="30s", retry=policy,
        pool="process", concurrency=2, max_age=timedelta(minutes=5), aliases=["mail"],
    )  # fmt: skip
    assert registry.get("email.send") is spec
    assert registry.get("other") is None
    assert (spec.name, spec.function, spec.asynchronous) == ("email.send", send, False)
    assert (spec.max_attempts, spec.timeout_ms, spec.retry) == (7, 30_000, policy)
    assert (spec.pool, spec.concurrency, spec.max_age_ms) == (Pool.PROCESS, 2, 300_000)


def test_nothing_asked_for_is_no_limit():
    spec = Registry().add("plain", send)
    assert (spec.timeout_ms, spec.concurrency, spec.max_age_ms) == (None, None, None)
    assert (spec.pool, spec.aliases, spec.max_attempts, spec.chain) == (Pool.THREAD, (), 5, None)
    assert spec.retry == Registry().add("plain", send, retry=None).retry == RetryPolicy()


@pytest.mark.parametrize(
    ("function", "asynchronous"),
    [(send, False), (send_async, True), (Sender(), True), (functools.partial(send_async), True)],
    ids=["function", "coroutine function", "instance", "partial"],
)
def test_asynchronous_handlers_are_recognised(function, asynchronous):
    assert Registry().add("a", function).asynchronous is asynchronous


@pytest.mark.parametrize(
    ("field", "name", "function", "options"),
    [
        ("handler", "Email", send, {}),
        ("handler", "nul\0", send, {}),
        ("handler", 7, send, {}),
        ("handler", "email", without_parameters, {}),
        ("handler", "email", with_keywords_only, {}),
        ("handler", "email", 7, {}),
        ("handler", "email", generator, {}),
        ("handler", "email", async_generator, {}),
        ("max_attempts", "email", send, {"max_attempts": 0}),
        ("max_attempts", "email", send, {"max_attempts": True}),
        ("max_attempts", "email", send, {"max_attempts": "3"}),
        ("max_attempts", "email", send, {"max_attempts": 10_001}),
        ("timeout", "email", send, {"timeout": "soon"}),
        ("timeout", "email", send, {"timeout": timedelta(0)}),
        ("retry", "email", send, {"retry": 3}),
        ("pool", "email", send, {"pool": "fork"}),
        ("pool", "email", send, {"pool": []}),
        ("pool", "email", send_async, {"pool": "process"}),
        ("concurrency", "email", send, {"concurrency": 0}),
        ("concurrency", "email", send, {"concurrency": 1.5}),
        ("max_age", "email", send, {"max_age": "0s"}),
        ("max_age", "email", send, {"max_age": -1}),
        ("aliases", "email", send, {"aliases": "mail"}),
        ("aliases", "email", send, {"aliases": 7}),
        ("aliases", "email", send, {"aliases": ["Mail"]}),
        ("aliases", "email", send, {"aliases": [None]}),
        ("aliases", "email", send, {"aliases": ["email"]}),
        ("aliases", "email", send, {"aliases": ["mail", "mail"]}),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_what_cannot_work_is_refused_at_registration_by_the_name_of_the_option(
    field, name, function, options
):
    registry = Registry()
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        registry.add(name, function, **options)
    assert registry.names() == ()


def test_a_name_belongs_to_one_function():
    registry = Registry()
    registry.add("email", send)
    assert registry.add("email", send) is registry.get("email")
    with pytest.raises(InvalidInput, match=r"^handler: 'email' is already registered for .*\.send$"):
        registry.add("email", send_whole)
    with pytest.raises(InvalidInput, match=r"^handler: 'email' is already registered"):
        registry.add("email", send, max_attempts=2)


def test_an_alias_is_a_name_like_any_other():
    registry = Registry()
    spec = registry.add("email.send", send, aliases=["mail", "mail.send"])
    assert registry.get("mail") is registry.get("mail.send") is spec
    assert registry.names() == ("email.send", "mail", "mail.send")
    with pytest.raises(InvalidInput, match=r"^aliases: 'mail' is already registered for .*\.send$"):
        registry.add("letter", send_whole, aliases=["mail"])
    with pytest.raises(InvalidInput, match=r"^handler: 'mail' is already registered for .*\.send$"):
        registry.add("mail", send_whole)
    assert registry.get("letter") is None


def test_registries_are_joined():
    one, other, third = Registry(), Registry(), Registry()
    one.add("a", send)
    other.add("b", send, aliases=["c"])
    third.add("a", send_whole)
    one.include(other)
    one.include(other)
    assert one.names() == ("a", "b", "c")
    assert one.get("c") is one.get("b")
    with pytest.raises(InvalidInput, match="already registered"):
        one.include(third)


def test_a_function_is_known_by_the_names_it_was_given_in_their_order():
    registry = Registry()
    registry.add("b", send, aliases=["old"])
    registry.add("a", send)
    assert registry.names_of(send) == ["b", "a"]
    assert registry.names_of(send_whole) == []


# -- middleware


def test_middleware_is_around_what_was_and_what_will_be_registered():
    registry, middleware, inner = Registry(), Quiet(), Quiet()
    registry.add("a", send)
    registry.use(middleware)
    registry.use(inner)
    registry.add("b", send, aliases=["c"])
    for name in "abc":
        assert registry.get(name).middleware == (middleware, inner)
    assert registry.add("a", send) is registry.get("a")


def test_handlers_come_with_their_middleware_inside_that_of_who_includes_them():
    one, other, outer, own = Registry(), Registry(), Quiet(), Quiet()
    other.use(own)
    other.add("b", send)
    one.include(other)
    one.use(outer)
    one.add("a", send)
    assert one.get("b").middleware == (outer, own)
    assert one.get("a").middleware == (outer,)
    assert other.get("b").middleware == (own,)


@pytest.mark.parametrize("middleware", [Quiet, object(), None])
def test_what_is_no_middleware_is_refused(middleware):
    with pytest.raises(InvalidInput, match=r"^middleware: "):
        Registry().use(middleware)


def test_asynchronous_hooks_need_asynchronous_handlers():
    problem = "^middleware: Waiting.after is `async def`, but a is a plain handler$"
    registry = Registry()
    registry.add("b", send_async)
    registry.use(Waiting())
    with pytest.raises(InvalidInput, match=problem):
        registry.add("a", send)
    assert registry.names() == ("b",)
    plain = Registry()
    plain.add("a", send)
    with pytest.raises(InvalidInput, match=problem):
        plain.use(Waiting())
    assert plain.middleware == ()
    with pytest.raises(InvalidInput, match=problem):
        registry.include(plain)


# -- dead jobs


def letter(**changes):
    run = Run(
        job_id="j1", occurrence_id="j1", due_at=1, run=3, queue="q", handler="email", created_at=1,
        nominal_at=1, idempotency_key="j1", payload=changes.pop("payload", b'{"to":"a@b"}'),
    )  # fmt: skip
    attempt = AttemptRecord(
        run=3, attempt=1, worker="w", token=9, at=1, outcome="dead", error=Failure(type="E", message="no")
    )
    fields = {
        "reason": "max_attempts", "detail": "", "at": 1, "source_topic": "w", "source_partition": 0,
        "source_offset": 0, "run": run, "attempts": (attempt,),
    }  # fmt: skip
    return DeadLetter(**(fields | changes))


def test_a_dead_job_tells_what_its_letter_holds():
    job = DeadJob.of(letter())
    assert (job.job_id, job.handler, job.payload, job.run) == ("j1", "email", {"to": "a@b"}, 3)
    assert (job.reason, job.error) == ("max_attempts", Failure(type="E", message="no"))
    assert [attempt.token for attempt in job.attempts] == [9]


@pytest.mark.parametrize("payload", [b"\xff{", b"[" * 100_000], ids=["bytes", "nested"])
def test_a_payload_that_is_no_json_is_shown_as_text(payload):
    assert DeadJob.of(letter(payload=payload)).payload == payload.decode("utf-8", "backslashreplace")


def test_a_letter_of_what_nobody_could_read_is_of_no_job():
    assert DeadJob.of(letter(run=None)) is None
    assert DeadJob.of(letter(attempts=())).error is None


def test_every_hook_is_told_whatever_the_others_do(caplog):
    told = []

    def failing(job):
        raise SystemExit(3)

    registry, other = Registry(), Registry()
    registry.on_dead(failing)
    registry.on_dead(told.append)
    other.include(registry)
    other.include(registry)
    job = DeadJob.of(letter())
    other.tell_dead(job)
    assert told == [job]
    assert [record.action for record in caplog.records] == ["on_dead.failed"]
    assert other.dead_hooks == registry.dead_hooks


@pytest.mark.parametrize("hook", [send_async, "mail"])
def test_a_hook_must_be_a_plain_function(hook):
    with pytest.raises(InvalidInput, match=r"^on_dead: "):
        Registry().on_dead(hook)


# -- calls


def invoke(function, payload):
    return Registry().add("email", function).invoke("ctx", payload)


def test_the_payload_is_passed_by_name():
    assert invoke(send, {"to": "a@b"}) == ("ctx", "a@b", "hello")


def test_no_payload_is_no_argument():
    assert invoke(lambda ctx: ctx, None) == "ctx"


@pytest.mark.parametrize("payload", [{"to": "a@b"}, [1, 2], None])
def test_a_parameter_named_payload_gets_it_whole(payload):
    assert invoke(send_whole, payload) == ("ctx", payload)


def test_a_name_may_be_used_for_json_that_is_not_there_yet():
    registry = Registry()
    registry.add("email", send)
    registry.check()
    assert json.loads(json.dumps(registry.get("email").invoke("ctx", {"to": 1}))) == ["ctx", 1, "hello"]
