"""Loading the application that holds the handlers: `module:attribute`, as ASGI servers name theirs, or `module`."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from pipeline.client import Dueline
from pipeline.core.errors import InvalidInput

CIRCLE = "partially initialized module"
"""What an ImportError or AttributeError says of a module that is still being imported."""


def load_app(target: str) -> Dueline:
    """The Dueline object that `module:attribute` names, or the only one in `module`. InvalidInput('app') saying module
    and line if it fails.

    The current directory comes first on the path, as with `python -m`.
    """
    module_name, colon, attribute = target.partition(":")
    if not module_name or (colon and not attribute):
        raise InvalidInput("app", f"{target!r} is not module:attribute")
    add_current_directory()
    module = _imported(module_name)
    return _named(module, attribute) if colon else _only(module)


def add_current_directory() -> None:
    """Let modules be found where the user stands."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise InvalidInput("app", _problem(name, error)) from error


def _problem(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        return f"importing {name} failed: there is no module {error.name}{_as_path(name)}"
    places = [*_places(error)]
    what = error.msg if isinstance(error, SyntaxError) else error
    said = f"{type(error).__name__}: {what}"
    if CIRCLE in str(error):
        said = f"a circular import ({' → '.join(dict.fromkeys(places))}): {said}"
    return f"importing {name} failed{_where(places)}: {said}"


def _where(places: list[str]) -> str:
    """The user's own line, and that of the library it led to if it is another."""
    own = [place for place in places if not os.path.isabs(place) and "site-packages" not in place]
    if not places:
        return ""
    inner = f" (in {places[-1]})" if own and own[-1] != places[-1] else ""
    return f" at {own[-1] if own else places[-1]}{inner}"


def _as_path(name: str) -> str:
    """What was meant by the name of a file."""
    path = Path(name)
    if path.suffix != ".py" and len(path.parts) < 2:
        return f" in {Path.cwd()} or among the installed ones"
    return f"; did you mean {'.'.join(path.with_suffix('').parts)}?"


def _places(error: BaseException) -> Iterator[str]:
    """The lines that led to `error`, outermost first, without those of the import system and of this module."""
    for frame in traceback.extract_tb(error.__traceback__):
        if "importlib" not in frame.filename and frame.filename != __file__:
            yield _place(frame.filename, frame.lineno)
    if isinstance(error, SyntaxError) and error.filename is not None:
        yield _place(error.filename, error.lineno)


def _place(file: str, line: int | None) -> str:
    here = f"{Path.cwd()}{os.sep}"
    return f"{file.removeprefix(here)}:{line}"


def _named(module: ModuleType, attribute: str) -> Dueline:
    if not hasattr(module, attribute):
        raise InvalidInput("app", f"{module.__name__} has no {attribute!r}{_meant(module, attribute)}")
    app = getattr(module, attribute)
    if not isinstance(app, Dueline):
        problem = f"{module.__name__}:{attribute!s} is {type(app).__name__}, not a Dueline"
        raise InvalidInput("app", f"{problem}{_instead(module)}")
    return app


def _only(module: ModuleType) -> Dueline:
    found = _apps(module)
    if not found:
        raise InvalidInput("app", f"{module.__name__} has no Dueline object")
    if len({id(app) for app in found.values()}) > 1:
        choice = " or ".join(f"{module.__name__}:{name}" for name in found)
        raise InvalidInput("app", f"{module.__name__} has several Dueline objects: say {choice}")
    return next(iter(found.values()))


def _apps(module: ModuleType) -> dict[str, Dueline]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Dueline)}


def _meant(module: ModuleType, attribute: str) -> str:
    close = difflib.get_close_matches(attribute, list(_apps(module)), n=1)
    return f"; did you mean {close[0]!r}?" if close else _instead(module)


def _instead(module: ModuleType) -> str:
    found = _apps(module)
    return f"; its Dueline is {' or '.join(map(repr, found))}" if found else ""
