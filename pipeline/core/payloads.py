"""A payload as its handler's annotation wants it: checked and converted, or refused with the path of what is wrong.

A model (pydantic's, or anything with `model_validate`) checks itself. Dataclasses, TypedDicts and the plain types are
checked here, strictly: JSON has types of its own, and `"7"` is no number.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

from pipeline.core.errors import InvalidInput
from pipeline.core.verbs import InvalidPayload

Reader = Callable[[Any, str], Any]
"""(JSON value, its path) to what the handler gets. InvalidPayload."""
_Known = dict[Any, Reader]
_ABSENT = object()


def is_model(annotation: Any) -> bool:
    """Whether a payload is meant to be read into it as a whole."""
    return isinstance(annotation, type) and (
        dataclasses.is_dataclass(annotation)
        or typing.is_typeddict(annotation)
        or callable(getattr(annotation, "model_validate", None))
    )


def reader_of(annotation: Any, known: _Known | None = None) -> Reader:
    """What reads a JSON value for `annotation`. InvalidInput('handler') if nothing can check it. `known` = readers of
    the records being made, so that one may hold itself."""
    known = {} if known is None else known
    annotation = _bare(annotation)
    if annotation in (Any, object):
        return as_is
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin = typing.get_origin(annotation) or annotation
    if origin in (typing.Union, types.UnionType):
        return _union(annotation, known)
    if origin is typing.Literal:
        return partial(_literal, typing.get_args(annotation))
    if origin in _COLLECTIONS:
        return _collection(annotation, _COLLECTIONS[origin], known)
    if origin in (dict, Mapping):
        return _object(annotation, known)
    if isinstance(annotation, type):
        return _class(annotation, known)
    raise _unreadable(annotation)


def as_is(value: Any, _path: str) -> Any:
    """The value itself."""
    return value


def _bare(annotation: Any) -> Any:
    """Without what says nothing about JSON: Annotated, Required, NewType, an alias."""
    while True:
        if typing.get_origin(annotation) in (typing.Annotated, typing.Required, typing.NotRequired):
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif hasattr(annotation, "__value__"):  # `type Name = …` of Python 3.12
            annotation = annotation.__value__
        else:
            return type(None) if annotation is None else annotation


def _class(kind: type, known: _Known) -> Reader:
    if callable(getattr(kind, "model_validate", None)):
        return partial(_model, kind)
    if issubclass(kind, Enum):
        return partial(_member, kind)
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        if kind not in known:
            # Found when it is called: it may hold itself.
            known[kind] = lambda value, path: made(value, path)
            made = _record(kind, known)
        return known[kind]
    raise _unreadable(kind)


def _unreadable(annotation: Any) -> InvalidInput:
    name = getattr(annotation, "__qualname__", None) or repr(annotation)
    return InvalidInput(
        "handler", f"nothing can check a payload against {name}: take a model, a dataclass or JSON's types"
    )


# -- values -------------------------------------------------------------------------------------------------


def _refuse(value: Any, path: str, wanted: str) -> InvalidPayload:
    shown = repr(value)
    return InvalidPayload(f"{path}: {shown if len(shown) <= 80 else shown[:77] + '...'} is no {wanted}")


def _exact(kinds: tuple[type, ...], wanted: str, value: Any, path: str) -> Any:
    if type(value) not in kinds:  # True is an int to isinstance
        raise _refuse(value, path, wanted)
    return value


def _text(make: Callable[[Any], Any], kinds: tuple[type, ...], wanted: str, value: Any, path: str) -> Any:
    _exact(kinds, wanted, value, path)
    try:
        return make(value)
    except (ValueError, ArithmeticError):
        raise _refuse(value, path, wanted) from None


def _instant(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.utcoffset() is None:
        raise ValueError("naive")
    return value


def _decimal(value: str | int) -> Decimal:
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError("not finite")
    return number


_PLAIN: Mapping[Any, Reader] = {
    str: partial(_exact, (str,), "text"),
    int: partial(_exact, (int,), "whole number"),
    float: lambda value, path: float(_exact((int, float), "number", value, path)),
    bool: partial(_exact, (bool,), "true or false"),
    type(None): partial(_exact, (type(None),), "null"),
    datetime: partial(_text, _instant, (str,), "instant with an offset, such as 2030-01-31T09:30:00Z"),
    date: partial(_text, date.fromisoformat, (str,), "date such as 2030-01-31"),
    Decimal: partial(_text, _decimal, (str, int), "decimal number as text"),
    UUID: partial(_text, UUID, (str,), "UUID"),
}


def _member(kind: type[Enum], value: Any, path: str) -> Any:
    for member in kind:
        if member.value == value and type(member.value) is type(value):
            return member
    raise _refuse(value, path, f"one of {', '.join(repr(member.value) for member in kind)}")


def _literal(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    if not any(choice == value and type(choice) is type(value) for choice in choices):
        raise _refuse(value, path, f"one of {', '.join(map(repr, choices))}")
    return value


def _union(annotation: Any, known: _Known) -> Reader:
    choices = typing.get_args(annotation)
    some = [choice for choice in choices if choice is not type(None)]
    readers = [reader_of(choice, known) for choice in some]
    return partial(_first_fit, readers, len(some) < len(choices))


def _first_fit(readers: Sequence[Reader], optional: bool, value: Any, path: str) -> Any:
    if value is None and optional:
        return None
    problems = []
    for read in readers:
        try:
            return read(value, path)
        except InvalidPayload as problem:
            problems.append(problem)
    if len(problems) == 1:
        raise problems[0]
    raise InvalidPayload(f"{path}: fits none of its types: {'; '.join(p.reason for p in problems)}")


# -- collections --------------------------------------------------------------------------------------------

_COLLECTIONS: Mapping[Any, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: list,
}


def _collection(annotation: Any, make: Callable[[list[Any]], Any], known: _Known) -> Reader:
    items = typing.get_args(annotation) or (Any,)
    if make is tuple and items[1:] != (...,) and typing.get_args(annotation):
        return partial(_fixed, [reader_of(item, known) for item in items])
    return partial(_items, make, reader_of(items[0], known))


def _items(make: Callable[[list[Any]], Any], read: Reader, value: Any, path: str) -> Any:
    _exact((list,), "list", value, path)
    try:
        return make([read(item, f"{path}[{n}]") for n, item in enumerate(value)])
    except TypeError:  # a set of what has no hash
        raise _refuse(value, path, "list of plain values") from None


def _fixed(readers: Sequence[Reader], value: Any, path: str) -> Any:
    if type(value) is not list or len(value) != len(readers):
        raise _refuse(value, path, f"list of {len(readers)}")
    return tuple(
        read(item, f"{path}[{n}]") for n, (read, item) in enumerate(zip(readers, value, strict=True))
    )


def _object(annotation: Any, known: _Known) -> Reader:
    names, items = typing.get_args(annotation) or (str, Any)
    if _bare(names) is not str:
        raise _unreadable(annotation)  # JSON has no other names
    return partial(_mapping, reader_of(items, known))


def _mapping(read: Reader, value: Any, path: str) -> Any:
    _exact((dict,), "object", value, path)
    return {name: read(item, f"{path}.{name}") for name, item in value.items()}


# -- records ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    read: Reader
    required: bool


def _record(kind: Any, known: _Known) -> Reader:
    """For a dataclass or a TypedDict: each member is read, unknown and missing ones are refused by name."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as problem:
        raise InvalidInput("handler", f"the annotations of {kind.__qualname__}: {problem}") from None
    required = _required(kind, hints)
    members = {
        name: _Member(read=reader_of(hints[name], known), required=needed)
        for name, needed in required.items()
    }
    return partial(_read_record, kind, members)


def _required(kind: Any, hints: Mapping[str, Any]) -> dict[str, bool]:
    """Whether a member must be there, by name."""
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return {
            field.name: field.default is missing and field.default_factory is missing
            for field in dataclasses.fields(kind)
            if field.init
        }
    return {name: _marked(hint, name in kind.__required_keys__) for name, hint in hints.items()}


def _marked(hint: Any, default: bool) -> bool:
    # Annotations that are text hide their marks from TypedDict itself.
    origin = typing.get_origin(hint)
    return default if origin not in (typing.Required, typing.NotRequired) else origin is typing.Required


def _read_record(kind: Any, members: Mapping[str, _Member], value: Any, path: str) -> Any:
    _exact((dict,), "object", value, path)
    for name in value:
        if name not in members:
            raise InvalidPayload(
                f"{path}.{name}: unknown; {kind.__qualname__} has {', '.join(members) or 'no fields'}"
            )
    read = {}
    for name, member in members.items():
        item = value.get(name, _ABSENT)
        if item is not _ABSENT:
            read[name] = member.read(item, f"{path}.{name}")
        elif member.required:
            raise InvalidPayload(f"{path}.{name}: missing")
    try:
        return kind(**read)
    except (ValueError, TypeError) as problem:  # a dataclass that looks at itself in __post_init__
        raise InvalidPayload(f"{path}: {problem}") from problem


def _model(kind: Any, value: Any, path: str) -> Any:
    try:
        return kind.model_validate(value)
    except ValueError as problem:
        raise InvalidPayload(f"{path}{_first_of(problem)}") from problem


def _first_of(problem: ValueError) -> str:
    """The first thing that pydantic found, in our form of a path; of another model, its own words."""
    errors: Any = getattr(problem, "errors", None)
    found = errors() if callable(errors) else []
    if not found:
        return f": {problem}"
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in found[0]["loc"])
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{place}: {found[0]['msg']}{more}"
