"""Loading the application that holds the handlers: `module:attribute`, as ASGI servers name theirs."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from pipeline.client import Dueline
from pipeline.core.errors import InvalidInput


def load_app(target: str) -> Dueline:
    """The Dueline object that `module:attribute` names. InvalidInput('app') saying module and line if it fails.

    The current directory comes first on the path, as with `python -m`.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise InvalidInput("app", f"{target!r} is not module:attribute")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise InvalidInput("app", f"importing {module_name} failed{_where(error)}: {error!r}") from error
    if not hasattr(module, attribute):
        raise InvalidInput("app", f"{module_name} has no {attribute!r}")
    app = getattr(module, attribute)
    if not isinstance(app, Dueline):
        raise InvalidInput("app", f"{target!r} is {type(app).__name__}, not a Dueline")
    return app


def _where(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f" at {error.filename}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""
