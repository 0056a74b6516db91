"""Reading values out of Python source without running it: literals, names that stand for some, and a few calls."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.crontab.celery import Called

_CALLS = ("crontab", "timedelta", "schedule", "solar")
_BIGGEST = 10**18
_DEEPEST = 100
_STEPS = 500_000
"""Expressions looked at in one file: a list of names of lists of names … would never end."""


class Unreadable(Exception):
    """This expression is no literal: its value is known only to the running program. `line` is where it stands."""

    def __init__(self, node: ast.AST, text: str = "it is computed when the program runs") -> None:
        self.line: int = getattr(node, "lineno", 0)
        self.text = text
        super().__init__(text)


def tree_of(text: str, name: str) -> ast.Module:
    """The parsed source. InvalidInput with file and line if it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of somebody's backslashes
            return ast.parse(text)
    except SyntaxError as error:
        raise InvalidInput(f"{name}:{error.lineno or 1}", f"no Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise InvalidInput(name, "no Python: nested too deeply") from None


class Names:
    """What names at the top of a module stand for, where that is a literal; read when asked for."""

    def __init__(self, tree: ast.Module) -> None:
        self._assigned: dict[str, ast.expr] = {}
        self._imported: dict[str, str] = {}
        self._steps = 0
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._assigned[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._assigned[name] = value
                case ast.ImportFrom(names=aliases):
                    self._imported |= {alias.asname: alias.name for alias in aliases if alias.asname}

    def call_name(self, node: ast.expr) -> str:
        """`crontab` of `crontab(…)`, `schedules.crontab(…)`, or of the name it was imported as."""
        match node:
            case ast.Attribute(attr=name):
                return name
            case ast.Name(id=name):
                return self._imported.get(name, name)
        return ""

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression. Unreadable if that takes running the program."""
        self._step(node, depth)
        match node:
            case ast.Constant(value=str() | int() | float() | bool() | None as value):
                return value
            case ast.List(elts=items) | ast.Set(elts=items):
                return [self.value(item, depth + 1) for item in items]
            case ast.Tuple(elts=items):
                return [self.value(item, depth + 1) for item in items]
            case ast.Dict():
                return {key: self.value(value, depth + 1) for key, value in self.items(node, depth)}
            case ast.Name(id=name):
                return self._named(node, name, depth)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand, depth)
            case ast.BinOp():
                return self._arithmetic(node, depth)
            case ast.Call():
                return self._call(node, depth)
        raise Unreadable(node)

    def items(self, node: ast.expr, depth: int = 0) -> list[tuple[Any, ast.expr]]:
        """Keys and value expressions of a dict, as it is written, named, or made with dict(…), {**…} or |."""
        self._step(node, depth)
        match node:
            case ast.Name(id=name) if name in self._assigned:
                return self.items(self._assigned[name], depth + 1)
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return [item for key, value in pairs for item in self._item(key, value, depth + 1)]
            case ast.Call(func=ast.Name(id="dict"), args=args, keywords=keywords):
                first = [item for arg in args for item in self.items(arg, depth + 1)]
                return first + [(keyword.arg, keyword.value) for keyword in keywords if keyword.arg]
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.items(left, depth + 1) + self.items(right, depth + 1)
        raise Unreadable(node, "it is no dict that is written out")

    def _step(self, node: ast.expr, depth: int) -> None:
        self._steps += 1
        if depth > _DEEPEST or self._steps > _STEPS:
            raise Unreadable(node, "nested too deeply")

    def _item(self, key: ast.expr | None, value: ast.expr, depth: int) -> list[tuple[Any, ast.expr]]:
        if key is None:
            return self.items(value, depth)
        name = self.value(key, depth)
        if not isinstance(name, str | int | float | None):
            raise Unreadable(key)
        return [(name, value)]

    def _named(self, node: ast.expr, name: str, depth: int) -> Any:
        if name not in self._assigned:
            raise Unreadable(node, f"{name} is known when the program runs")
        return self.value(self._assigned[name], depth + 1)

    def _number(self, node: ast.expr, depth: int) -> Any:
        value = self.value(node, depth + 1)
        if not isinstance(value, int | float) or abs(value) > _BIGGEST:
            raise Unreadable(node)
        return value

    def _arithmetic(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self._number(node.left, depth), self._number(node.right, depth)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div() if right:
                return left / right
        raise Unreadable(node)

    def _call(self, node: ast.Call, depth: int) -> Any:
        name = self.call_name(node.func)
        if name == "dict":
            return {key: self.value(value, depth + 1) for key, value in self.items(node, depth)}
        if name not in _CALLS:
            raise Unreadable(node)
        if any(keyword.arg is None for keyword in node.keywords):
            raise Unreadable(node)
        args = tuple(self.value(arg, depth + 1) for arg in node.args)
        return Called(
            name=name, args=args, kwargs={str(k.arg): self.value(k.value, depth + 1) for k in node.keywords}
        )
