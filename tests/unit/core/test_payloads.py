"""What a payload is checked against, and how it is told what is wrong."""

import collections.abc
import typing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, Required, TypedDict, Union
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from pipeline.core.errors import InvalidInput
from pipeline.core.payloads import is_model, reader_of
from pipeline.core.verbs import InvalidPayload


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 1


Cents = NewType("Cents", int)


@dataclass(frozen=True, kw_only=True)
class Item:
    name: str
    cents: Cents
    tags: set[str] = field(default_factory=set)
    made: bool = field(init=False, default=True)


@dataclass
class Order:
    id: UUID
    items: list[Item]
    at: datetime | None = None


@dataclass
class Tree:
    children: "list[Tree]"


@dataclass
class Positive:
    number: int

    def __post_init__(self):
        if self.number < 0:
            raise ValueError("number: is negative")


class Note(TypedDict):
    text: str
    by: NotRequired[int]


class Marked(TypedDict, total=False):
    text: "Required[str]"
    by: "int"


class Model(BaseModel):
    name: str
    sizes: list[int] = Field(max_length=2)


class Alias:
    """As `type Cents = int` of Python 3.12 looks."""

    __value__ = int

    def __repr__(self):
        return "Alias"


class Homegrown:
    @classmethod
    def model_validate(cls, value):
        raise ValueError("never")


def read(annotation, value):
    return reader_of(annotation)(value, "p")


@pytest.mark.parametrize(
    ("annotation", "value", "made"),
    [
        (Any, {"a": 1}, {"a": 1}),
        (object, None, None),
        (str, "x", "x"),
        (int, 7, 7),
        (float, 7, 7.0),
        (float, 7.5, 7.5),
        (bool, True, True),
        (None, None, None),
        (datetime, "2030-01-31T09:30:00.5Z", datetime(2030, 1, 31, 9, 30, 0, 500_000, UTC)),
        (date, "2030-01-31", date(2030, 1, 31)),
        (Decimal, "1.10", Decimal("1.10")),
        (Decimal, 3, Decimal(3)),
        (UUID, "12345678-1234-5678-1234-567812345678", UUID(int=0x12345678123456781234567812345678)),
        (Color, "red", Color.RED),
        (Level, 1, Level.HIGH),
        (Literal["a", 1], 1, 1),
        (Optional[int], None, None),  # noqa: UP045
        (int | str, "x", "x"),
        (Union[Item, int], 7, 7),  # noqa: UP007
        (list[int], [1, 2], [1, 2]),
        (list, [1, "x"], [1, "x"]),
        (collections.abc.Sequence[int], [1], [1]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple, [1, "x"], (1, "x")),
        (tuple[int, str], [1, "x"], (1, "x")),
        (set[int], [1, 1], {1}),
        (frozenset[str], ["x"], frozenset("x")),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, Decimal], {"a": "1"}, {"a": Decimal(1)}),
        (typing.Mapping[Annotated[str, "name"], int], {"a": 1}, {"a": 1}),
        (Annotated[int, "cents"], 7, 7),
        (Cents, 7, 7),
        (Alias(), 7, 7),
        (Item, {"name": "a", "cents": 7}, Item(name="a", cents=Cents(7))),
        (Item, {"name": "a", "cents": 7, "tags": ["x"]}, Item(name="a", cents=Cents(7), tags={"x"})),
        (Tree, {"children": [{"children": []}]}, Tree([Tree([])])),
        (Note, {"text": "x"}, {"text": "x"}),
        (Note, {"text": "x", "by": 1}, {"text": "x", "by": 1}),
        (Marked, {"text": "x"}, {"text": "x"}),
        (Model, {"name": "x", "sizes": [1]}, Model(name="x", sizes=[1])),
        (list[Model], [{"name": "x", "sizes": []}], [Model(name="x", sizes=[])]),
    ],
    ids=str,
)
def test_what_fits_is_made(annotation, value, made):
    result = read(annotation, value)
    assert result == made
    assert type(result) is type(made)


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (str, 7, "p: 7 is no text"),
        (int, "7", "p: '7' is no whole number"),
        (int, True, "p: True is no whole number"),
        (int, 7.0, "p: 7.0 is no whole number"),
        (float, "7", "p: '7' is no number"),
        (bool, 1, "p: 1 is no true or false"),
        (None, 0, "p: 0 is no null"),
        (str, ["x" * 100], "p: ['" + "x" * 75 + "... is no text"),
        (datetime, "2030-01-31T09:30:00", "is no instant with an offset"),
        (datetime, 7, "is no instant with an offset"),
        (date, "31.1.2030", "is no date such as 2030-01-31"),
        (Decimal, "one", "is no decimal number as text"),
        (Decimal, "NaN", "is no decimal number as text"),
        (Decimal, 1.5, "is no decimal number as text"),
        (UUID, "1", "is no UUID"),
        (Color, "blue", "p: 'blue' is no one of 'red'"),
        (Level, True, "p: True is no one of 1"),
        (Literal["a", 1], True, "p: True is no one of 'a', 1"),
        (int | None, "x", "p: 'x' is no whole number"),
        (int | str, None, "p: fits none of its types: p: None is no whole number; p: None is no text"),
        (list[int], {}, "p: {} is no list"),
        (list[int], [1, "x"], "p[1]: 'x' is no whole number"),
        (tuple[int, str], [1], "p: [1] is no list of 2"),
        (tuple[int, str], "xy", "p: 'xy' is no list of 2"),
        (tuple[int, str], [1, 2], "p[1]: 2 is no text"),
        (set[Any], [[]], "p: [[]] is no list of plain values"),
        (dict[str, int], [], "p: [] is no object"),
        (dict[str, int], {"a": "x"}, "p.a: 'x' is no whole number"),
        (Item, [], "p: [] is no object"),
        (Item, {"name": "a"}, "p.cents: missing"),
        (Item, {"name": "a", "cents": 1, "size": 2}, "p.size: unknown; Item has name, cents, tags"),
        (Item, {"name": "a", "cents": 1, "made": True}, "p.made: unknown"),
        (Order, {"id": "x", "items": []}, "p.id: 'x' is no UUID"),
        (
            Order,
            {"id": str(UUID(int=1)), "items": [{"name": "a", "cents": "1"}]},
            "p.items[0].cents: '1' is no whole number",
        ),
        (Positive, {"number": -1}, "p: number: is negative"),
        (Note, {"by": 1}, "p.text: missing"),
        (Note, {"text": "x", "to": 1}, "p.to: unknown; Note has text, by"),
        (Marked, {}, "p.text: missing"),
        (Model, {"sizes": ["x"]}, "p.name: Field required (and 1 more)"),
        (Model, {"name": "a", "sizes": [1, "x"]}, "p.sizes[1]: Input should be a valid integer"),
        (list[Model], [{}], "p[0].name: Field required (and 1 more)"),
        (Homegrown, {}, "p: never"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_its_path(annotation, value, problem):
    with pytest.raises(InvalidPayload) as refused:
        read(annotation, value)
    assert problem in refused.value.reason


class Opaque: ...


@dataclass
class Unknown:
    what: "Nothing"  # noqa: F821


@dataclass
class Holder:
    what: Opaque


@pytest.mark.parametrize(
    "annotation",
    [Opaque, list[Opaque], Holder, Unknown, dict[int, str], bytes, complex, collections.abc.Iterable, "text"],
    ids=str,
)
def test_what_nothing_can_check_is_told_where_it_is_written(annotation):
    with pytest.raises(InvalidInput, match=r"^handler: "):
        reader_of(annotation)


def test_models_are_dataclasses_typed_dicts_and_what_validates_itself():
    assert all(map(is_model, (Item, Note, Model, Homegrown)))
    assert not any(map(is_model, (dict, str, Opaque, list[Item], Item(name="a", cents=Cents(1)), None)))
