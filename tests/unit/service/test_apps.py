"""`--app module:app`: one line that names what is wrong, the module and the line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline import Dueline
from pipeline.core.errors import InvalidInput
from pipeline.service.apps import load_app

Write = Callable[..., None]
GOOD = "from pipeline import Dueline\napp = Dueline()\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """`write(shop="code", **{"pack/mod": "code"})` in the current directory; what it made importable is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)

    def files(**codes: str) -> None:
        for name, code in codes.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(code)

    yield files
    for name in set(sys.modules) - known:
        del sys.modules[name]


def problem(target: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        load_app(target)
    assert caught.value.field == "app"
    return str(caught.value)


def test_an_application_is_found_in_the_current_directory(write: Write) -> None:
    write(shop_good=GOOD)
    assert load_app("shop_good:app").registry.names() == ()


def test_a_module_alone_gives_its_only_application(write: Write) -> None:
    write(shop_one=f"{GOOD}alias = app\n")
    assert isinstance(load_app("shop_one"), Dueline)


def test_a_module_with_several_or_none_says_which(write: Write) -> None:
    write(shop_two=f"{GOOD}other = Dueline()\n", shop_none="x = 1\n")
    assert problem("shop_two").endswith(
        "shop_two has several Dueline objects: say shop_two:app or shop_two:other"
    )
    assert problem("shop_none").endswith("shop_none has no Dueline object")


@pytest.mark.parametrize("target", ["", ":", ":app", "shop:"])
def test_a_target_without_its_halves_is_refused(write: Write, target: str) -> None:
    assert problem(target).endswith(f"{target!r} is not module:attribute")


@pytest.mark.parametrize(
    ("code", "attribute", "expected"),
    [
        (GOOD, "ap", "shop_a has no 'ap'; did you mean 'app'?"),
        (GOOD, "jobs", "shop_a has no 'jobs'; its Dueline is 'app'"),
        (f"{GOOD}nape = dict", "nope", "shop_a has no 'nope'; its Dueline is 'app'"),
        ("x = 1", "jobs", "shop_a has no 'jobs'"),
        ("app = 1", "app", "shop_a:app is int, not a Dueline"),
        (f"{GOOD}make = dict", "make", "shop_a:make is type, not a Dueline; its Dueline is 'app'"),
        ("a = 1\nboom()", "app", "failed at shop_a.py:2: NameError: name 'boom' is not defined"),
        ("def (", "app", "failed at shop_a.py:1: SyntaxError: invalid syntax"),
        ("a = 1\n\tb", "app", "failed at shop_a.py:2: IndentationError: unexpected indent"),
        ("\nimport nowhere", "app", "failed at shop_a.py:2: ModuleNotFoundError: No module named 'nowhere'"),
        ("from pipeline import Nothing", "app", "failed at shop_a.py:1: ImportError: cannot import name"),
        ("import sys\nsys.exit(3)", "app", "failed at shop_a.py:2: SystemExit: 3"),
        ("import json\njson.loads('{')", "app", "failed at shop_a.py:2 (in "),
    ],
)
def test_what_is_wrong_is_named_with_its_line(write: Write, code: str, attribute: str, expected: str) -> None:
    write(shop_a=code)
    assert expected in problem(f"shop_a:{attribute}")


def test_a_module_that_is_not_there_says_where_it_was_looked_for(write: Write, tmp_path: Path) -> None:
    expected = (
        f"importing nowhere failed: there is no module nowhere in {tmp_path} or among the installed ones"
    )
    assert problem("nowhere:app").endswith(expected)
    write(**{"pack/__init__": ""})
    assert "there is no module pack.jobs in" in problem("pack.jobs:app")


@pytest.mark.parametrize(("target", "meant"), [("shop.py:app", "shop"), ("pack/jobs.py:app", "pack.jobs")])
def test_a_file_name_says_how_the_module_is_called(write: Write, target: str, meant: str) -> None:
    write(shop=GOOD)
    assert problem(target).endswith(f"did you mean {meant}?")


def test_a_module_that_misses_another_one_is_not_said_to_be_missing(write: Write) -> None:
    write(shop_b="import shop_b_missing")
    assert "at shop_b.py:1: ModuleNotFoundError: No module named 'shop_b_missing'" in problem("shop_b:app")


def test_a_circular_import_shows_its_way(write: Write) -> None:
    write(shop_c="import shop_d\n", shop_d="\nfrom shop_c import app\n")
    said = problem("shop_c:app")
    assert "failed at shop_d.py:2: a circular import (shop_c.py:1 → shop_d.py:2): ImportError" in said


def test_an_error_is_one_line_whatever_its_text(write: Write) -> None:
    write(shop_e="raise ValueError('a\\nb')")
    assert re.search(r"at shop_e.py:1: ValueError: a\s+b", problem("shop_e:app"))
