"""The command of a crontab line as a program and its arguments, without ever starting a shell.

A crontab's command is written for /bin/sh. What of it means the same without one (words, quotes, escapes, variables set
in front, output that goes to /dev/null) is carried over; at anything else it is refused, saying what needs a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.core.errors import InvalidInput

REMEDY = "put the line into an executable file and name that file here"
_PIECE = re.compile(
    r"""(?P<space>[ \t]+)
    |(?P<quiet>(?<![^ \t])(?:[12]?>>?[ \t]*/dev/null|&>>?[ \t]*/dev/null|0?<[ \t]*/dev/null|2>&1)(?![^ \t]))
    |'(?P<single>[^']*)'
    |"(?P<double>(?:[^"\\]|\\.)*)"
    |\\(?P<escaped>.)
    |(?P<plain>(?:[^\s'"\\|&;<>()`$*?\[~\#{]|\{\}|\$(?![A-Za-z0-9_{(@*\#?$!'"-]))+)
    |(?P<special>.)""",
    re.VERBOSE | re.DOTALL,
)
_PERCENTS = re.compile(r"\\.|[^\\%]+|%|\\$")
_IN_DOUBLE = re.compile(r'\\([\\"$`])')
_EXPANSION = re.compile(r"(?:(?<!\\)(?:\\\\)*)(?:`|\$[A-Za-z0-9_{(@*#?$!-])")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_NEEDS = {
    "|": "a pipe", "&": "& or &&", ";": "a list of commands", "<": "a redirect", ">": "a redirect", "(": "a subshell",
    ")": "a subshell", "`": "a command substitution", "$": "a variable or substitution", "*": "a file pattern",
    "?": "a file pattern", "[": "a file pattern", "~": "a home directory", "{": "a list in braces",
}  # fmt: skip
_PATTERNS = "*?["
_BUILTINS = frozenset({
    "!", "}", ".", ":", "alias", "break", "case", "cd", "command", "continue", "do", "done", "elif", "else",
    "esac", "eval", "exec", "exit", "export", "fi", "for", "function", "if", "local", "read", "readonly",
    "return", "select", "set", "shift", "source", "then", "time", "trap", "type", "ulimit", "umask",
    "unalias", "unset", "until", "wait", "while",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellFree:
    """A command that needs no shell: `argv`, the variables set in front of it, and whether it threw its output away
    or had a comment behind it."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    quiet: bool = False
    comment: bool = False


def split_percent(command: str) -> tuple[str, str | None]:
    r"""The command and the text of its standard input, None if it has none, by crontab(5): the first % ends the
    command, further ones are line ends, \% is a percent; the last line is ended if it is not."""
    parts: list[list[str]] = [[]]
    for piece in _PERCENTS.findall(command):
        if piece == "%":
            parts.append([])
        else:
            parts[-1].append("%" if piece == r"\%" else piece)
    first, *others = ("".join(part) for part in parts)
    text = "\n".join(others)
    return first.rstrip(), f"{text.removesuffix(chr(10))}\n" if text else None


def shell_free(command: str) -> ShellFree:
    """`command` as a program and its arguments. InvalidInput naming `command` if it needs a shell."""
    words: list[_Word] = []
    word: _Word | None = None
    quiet = comment = False
    for kind, text in _pieces(command):
        if kind == "space":
            word = None
        elif kind == "quiet" and word is None:
            quiet = True
        elif text == "#" and kind == "special" and word is None:
            comment = True
            break
        else:
            _check_piece(kind, text, word)
            if word is None:
                words.append(word := _Word(kind, text))
            word.pieces.append(text)
    return _command(words, quiet, comment)


class _Word:
    """A word while it is read. `assigns` = it begins like a variable's assignment, with no quote before its value."""

    def __init__(self, kind: str, text: str) -> None:
        self.pieces: list[str] = []
        self.assigns = kind == "plain" and _ASSIGNMENT.match(text) is not None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def _pieces(command: str) -> Iterator[tuple[str, str]]:
    for match in _PIECE.finditer(command):
        kind = match.lastgroup or ""
        text = match[kind]
        if kind == "double":
            if _EXPANSION.search(text):
                raise _shell("a variable or substitution")
            text = _IN_DOUBLE.sub(r"\1", text)
        yield kind, text


def _check_piece(kind: str, text: str, word: _Word | None) -> None:
    """Raises unless the shell takes these characters, as they stand here, for themselves."""
    if kind == "quiet":
        raise _shell("a redirect")
    inside = text == "~" and word is not None and not word.pieces[-1].endswith(("=", ":"))
    if kind != "special" or text == "#" or inside:
        return
    if text in "'\"\\":
        raise InvalidInput("command", f"{text} is not closed")
    if text not in _NEEDS:
        raise InvalidInput("command", f"{text!r} separates nothing: use spaces or tabs")
    raise _shell(_NEEDS[text], quote=text in _PATTERNS)


def _shell(what: str, *, quote: bool = False) -> InvalidInput:
    remedy = f"quote it if it stands for itself, else {REMEDY}" if quote else REMEDY
    return InvalidInput("command", f"{what} needs a shell, and scripts are run without one: {remedy}")


def _command(words: list[_Word], quiet: bool, comment: bool) -> ShellFree:
    env: list[tuple[str, str]] = []
    first = 0
    while first < len(words) and words[first].assigns:
        name, _, value = words[first].text.partition("=")
        env.append((name, value))
        first += 1
    argv = tuple(word.text for word in words[first:])
    if not argv:
        raise InvalidInput("command", "missing")
    _check_program(argv[0])
    return ShellFree(argv=argv, env=tuple(env), quiet=quiet, comment=comment)


def _check_program(program: str) -> None:
    if program in _BUILTINS:
        raise _shell(f"{program}, a word of the shell,")
    if not program or program.startswith("-"):
        raise InvalidInput("command", f"{program[:80]!r} is no program")
    if "/" in program and not program.startswith("/"):
        raise InvalidInput("command", f"{program[:80]!r} must be a name or an absolute path")
