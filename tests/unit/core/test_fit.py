"""Which payloads fit which handlers, and whose fault a TypeError is."""

import asyncio
import functools
import inspect
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from pipeline.core.errors import InvalidInput
from pipeline.core.handler import InvalidPayload, Registry


@dataclass
class Mail:
    to: str
    copies: int = 1


class Note(TypedDict):
    text: str


class Foreign:
    """As a pydantic model looks from outside."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def model_validate(cls, value):
        if value != {"ok": True}:
            raise ValueError("not ok")
        return cls(value)


def send(ctx, to, subject="hello"):
    return (ctx, to, subject)


def invoke(function, payload):
    return Registry().add("email", function).invoke("ctx", payload)


async def send_async(ctx, to):
    return to


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def decorated_async(function):
    @functools.wraps(function)
    async def wrapper(*args, **kwargs):
        return await function(*args, **kwargs)

    return wrapper


class Sender:
    def __call__(self, ctx, to):
        return to

    def send(self, ctx, to):
        return to


MISFITS = [
    ([1, 2], "not list"),
    ("text", "not str"),
    ({"subject": "no to"}, "missing a required argument: 'to'"),
    ({"to": 1, "unknown": 2}, "unexpected keyword argument 'unknown'"),
    ({"to": 1, "ctx": 1}, "multiple values for argument 'ctx'"),
]


@pytest.mark.parametrize(("payload", "problem"), MISFITS)
@pytest.mark.parametrize(
    "function",
    [send, decorated(send), functools.partial(send, subject="x"), Sender(), Sender().send],
    ids=["function", "decorated", "partial", "instance", "method"],
)
def test_a_payload_that_does_not_fit_is_invalid_and_says_which_argument(function, payload, problem):
    with pytest.raises(InvalidPayload, match=problem):
        invoke(function, payload)


@pytest.mark.parametrize(("payload", "problem"), MISFITS)
@pytest.mark.parametrize("function", [send_async, decorated_async(send_async)], ids=["plain", "decorated"])
def test_a_payload_that_does_not_fit_a_coroutine_is_invalid(function, payload, problem):
    async def call():
        return await invoke(function, payload)

    with pytest.raises(InvalidPayload, match=problem):
        asyncio.run(call())


def broken(ctx, to):
    return send("ctx")


async def broken_async(ctx, to):
    return send("ctx")


@pytest.mark.parametrize(
    "function", [broken, decorated(broken), functools.partial(broken)], ids=["plain", "decorated", "partial"]
)
def test_a_type_error_of_the_handler_is_its_own(function):
    with pytest.raises(TypeError, match=r"send\(\) missing"):
        invoke(function, {"to": 1})


@pytest.mark.parametrize(
    "function", [broken_async, decorated_async(broken_async)], ids=["plain", "decorated"]
)
def test_a_type_error_of_a_coroutine_is_its_own(function):
    async def call():
        return await invoke(function, {"to": 1})

    with pytest.raises(TypeError, match=r"send\(\) missing"):
        asyncio.run(call())


def test_a_decorator_may_add_arguments():
    def handler(ctx, database, to):
        return send("ctx") if to == "broken" else database

    @functools.wraps(handler)
    def wrapper(ctx, **members):
        return handler(ctx, "database", **members)

    assert invoke(wrapper, {"to": "x"}) == "database"
    with pytest.raises(TypeError, match=r"send\(\) missing"):
        invoke(wrapper, {"to": "broken"})


def test_a_type_error_of_a_decorator_is_its_own():
    @functools.wraps(send)
    def wrapper(*args, **kwargs):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        invoke(wrapper, {"to": 1})


def test_a_handler_without_code_of_its_own_is_judged_by_its_signature():
    class Callable:
        __signature__ = inspect.signature(send)
        __call__ = functools.partial(send)

    function = Callable()
    with pytest.raises(InvalidPayload, match="missing a required argument: 'to'"):
        invoke(function, {})


# -- models


def test_a_second_parameter_with_a_model_gets_the_payload_whole():
    def dataclass_handler(ctx, mail: Mail):
        return mail

    def text_handler(ctx, mail: "Mail"):
        return mail

    def typed_dict_handler(ctx, note: Note):
        return note

    def model_handler(ctx, wanted: Foreign):
        return wanted.value

    assert invoke(dataclass_handler, {"to": "a@b"}) == Mail("a@b", 1)
    assert invoke(text_handler, {"to": "a@b"}) == Mail("a@b", 1)
    assert invoke(typed_dict_handler, {"text": "x"}) == {"text": "x"}
    assert invoke(model_handler, {"ok": True}) == {"ok": True}
    for function, problem in [
        (dataclass_handler, "^mail.to: missing"),
        (text_handler, "^mail.to: missing"),
        (typed_dict_handler, "^note.text: missing"),
        (model_handler, "^wanted: not ok"),
    ]:
        with pytest.raises(InvalidPayload, match=problem):
            invoke(function, {})


def test_a_type_error_of_a_handler_with_a_model_is_its_own():
    def handler(ctx, mail: Mail):
        return send("ctx")

    with pytest.raises(TypeError, match=r"send\(\) missing"):
        invoke(handler, {"to": "x"})


def test_an_annotated_payload_is_checked():
    def handler(ctx, payload: list[Mail]):
        return payload

    assert invoke(handler, [{"to": "x"}]) == [Mail("x")]
    with pytest.raises(InvalidPayload, match=r"^payload\[0\].to: 7 is no text$"):
        invoke(handler, [{"to": 7}])


@pytest.mark.parametrize("annotation", [Any, object, dict, dict[str, Any]], ids=str)
def test_a_payload_annotated_with_json_is_itself(annotation):
    def handler(ctx, payload):
        return payload

    handler.__annotations__["payload"] = annotation
    assert invoke(handler, {"a": 1}) == {"a": 1}


def test_plain_arguments_are_passed_as_they_are():
    def handler(ctx, to: int, options: dict, mail: Mail | None = None, *, note: Note | None = None):
        return to, options, mail, note

    payload = {"to": "text", "options": [], "mail": 7, "note": {}}
    assert invoke(handler, payload) == ("text", [], 7, {})


def test_a_model_beside_required_arguments_is_refused():
    def handler(ctx, mail: Mail, to): ...
    def keyword(ctx, payload, *, to): ...
    def fine(ctx, mail: Mail, to=None, *rest, **more): ...

    for function in (handler, keyword):
        with pytest.raises(InvalidInput, match=r"^handler: .*the payload whole, so nothing is left for to$"):
            Registry().add("a", function)
    Registry().add("a", fine)


def test_a_payload_that_nothing_can_check_is_refused():
    def handler(ctx, payload: Registry): ...

    with pytest.raises(InvalidInput, match=r"^handler: nothing can check a payload against Registry: "):
        Registry().add("a", handler)


def test_annotations_that_are_text_are_looked_up_at_the_first_use():
    def handler(ctx, payload: "Later"):  # noqa: F821
        return payload

    registry = Registry()
    registry.add("a", handler)
    try:
        globals()["Later"] = Mail
        registry.check()
    finally:
        del globals()["Later"]
    assert registry.get("a").invoke("ctx", {"to": "x"}) == Mail("x")


def test_an_unsuitable_annotation_that_is_text_is_found_by_the_check():
    def handler(ctx, payload: "Registry"): ...

    registry = Registry()
    registry.add("a", handler)
    with pytest.raises(InvalidInput, match=r"^handler: nothing can check"):
        registry.check()


def test_an_annotation_for_type_checkers_only_is_none():
    def handler(ctx, mail: "OnlyForCheckers"):  # noqa: F821
        return mail

    assert invoke(handler, {"mail": 7}) == 7
    with pytest.raises(
        InvalidPayload, match=r"\(nothing is known as OnlyForCheckers, the annotation of mail\)$"
    ):
        invoke(handler, {"to": 7})


def test_annotations_of_an_instance_are_those_of_its_module():
    class Handler:
        def __call__(self, ctx, mail: "Mail"):
            return mail

    assert invoke(Handler(), {"to": "x"}) == Mail("x")
