"""How a payload becomes the arguments of a handler: whole as its second parameter, or each member by its name."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.payloads import as_is, is_model, reader_of
from pipeline.core.verbs import InvalidPayload

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Fit:
    """What the parameters of one handler ask of its payload.

    Annotations that are text are looked up at the first use, since what they name may stand further down. One of the
    second parameter that names nothing (an import for type checkers only) is taken for a plain argument.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """InvalidInput('handler') if the function cannot be a handler."""
        if not callable(function):
            raise InvalidInput("handler", f"{name!r} is given {function!r}, which cannot be called")
        self.name, self.function = name, function
        self.signature = inspect.signature(function)
        self.ready = False
        """Whether `read` is known."""
        self.read: Callable[[Any], Any] | None = None
        """What reads the whole payload for the second parameter; None = its members are passed by name."""
        self.wrapped = inspect.unwrap(function) is not function
        self._code = _code_of(function)
        self._unknown = ""
        parameters = [p for p in self.signature.parameters.values() if p.kind in _POSITIONAL]
        if not parameters:
            raise InvalidInput(
                "handler", f"{place_of(function)} must take the context as its first parameter"
            )
        self._second = parameters[1] if len(parameters) > 1 else None
        if self._second is None or not isinstance(self._second.annotation, str):
            self.resolve()

    def resolve(self) -> None:
        """Settle `read`. InvalidInput('handler') if the payload could not be checked as it is annotated."""
        if not self.ready:
            self.read = None if self._second is None else self._reader(self._second)
            self.ready = True

    def _reader(self, second: inspect.Parameter) -> Callable[[Any], Any] | None:
        annotation = self._annotation(second)
        if second.name != "payload" and not is_model(annotation):
            return None
        self._check_alone(second)
        read = as_is if annotation is inspect.Parameter.empty else reader_of(annotation)
        return lambda payload: read(payload, second.name)

    def _annotation(self, second: inspect.Parameter) -> Any:
        if not isinstance(second.annotation, str):
            return second.annotation
        holder = types.SimpleNamespace(__annotations__={second.name: second.annotation})
        # Of an instance, the names of the module that its class stands in.
        function = inspect.unwrap(self.function)
        names = getattr(function, "__globals__", getattr(type(function).__call__, "__globals__", {}))
        try:
            return typing.get_type_hints(holder, globalns=names, include_extras=True)[second.name]
        except NameError:
            self._unknown = f" (nothing is known as {second.annotation}, the annotation of {second.name})"
            return inspect.Parameter.empty

    def _check_alone(self, second: inspect.Parameter) -> None:
        for parameter in list(self.signature.parameters.values())[2:]:
            if parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIABLE:
                problem = f"{second.name} gets the payload whole, so nothing is left for {parameter.name}"
                raise InvalidInput("handler", f"{place_of(self.function)}: {problem}")

    def members(self, payload: object) -> Mapping[str, Any]:
        """A payload to be passed by name. InvalidPayload if it is no object."""
        if payload is None:
            return {}
        if isinstance(payload, dict):
            return payload
        raise InvalidPayload(
            f"handler {self.name} takes its payload as named arguments, so it must be a JSON object,"
            f" not {type(payload).__name__}"
        )

    def misfit(self, context: object, payload: object, error: TypeError) -> InvalidPayload | None:
        """What a TypeError of the call says of the payload: None if the handler itself was entered, and raised it."""
        if self.read is not None or self._entered(error.__traceback__):
            return None
        try:
            self.signature.bind(context, **self.members(payload))
        except TypeError as problem:
            return InvalidPayload(f"payload does not fit {self.name}: {problem}{self._unknown}")
        return None

    def _entered(self, trace: types.TracebackType | None) -> bool:
        while trace is not None:
            if trace.tb_frame.f_code is self._code:
                return True
            trace = trace.tb_next
        return False


def place_of(function: Callable[..., Any]) -> str:
    """Where a function stands, for people."""
    module = getattr(function, "__module__", None)
    return f"{module}.{getattr(function, '__qualname__', repr(function))}"


def _code_of(function: Any) -> types.CodeType | None:
    """The code of what a user wrote, under decorators and partials; None if it is not Python."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
