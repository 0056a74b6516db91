"""Converters of settings: from the value given (text in the environment, anything as a keyword) to the one used.

ValueError says what is wrong with it, without naming the setting.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from pipeline.core.names import NAME


def text(value: object) -> str:
    text = str(value)
    if not text or "\0" in text:
        raise ValueError("is empty or holds a NUL")
    return text


def word(value: object) -> str:
    given = text(value)
    if len(given) > 200 or not given.isprintable() or " " in given:
        raise ValueError(f"{given[:80]!r} is no word of at most 200 characters")
    return given


def name(value: object) -> str:
    given = text(value)
    if not NAME.fullmatch(given):
        raise ValueError(f"{given!r} does not match [a-z0-9._-]{{1,80}}")
    return given


def integer(low: int, high: int) -> Callable[[object], int]:
    def convert(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"{value!r} is not a whole number")
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"{value!r} is not a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"{number} is not within {low} … {high}")
        return number

    return convert


def one_of(*choices: str) -> Callable[[object], str]:
    def convert(value: object) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return str(value)

    return convert


_SERVER = re.compile(r"(?:[A-Z_]+://)?(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")


def servers(value: object) -> str:
    for server in (parts := [part.strip() for part in text(value).split(",")]):
        match = _SERVER.fullmatch(server)
        if match is None or not 0 < int(match["port"] or 9092) < 65536:
            raise ValueError(f"{server!r} is not host:port")
    return ",".join(parts)


_URL = re.compile(
    r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)(?::(?P<port>\d{1,5}))?(?:/[\w.~/-]*)?",
    re.ASCII,
)


def url(value: object) -> str:
    """Of a server, and the path it is under, without the slash at its end. No user, no query: it is shown."""
    match = _URL.fullmatch(text(value))
    if match is None or not 0 < int(match["port"] or 80) < 65536:
        raise ValueError("is not http://host:port or https://host:port")
    return match[0].rstrip("/")


def token(value: object) -> str:
    """The error does not repeat it."""
    given = text(value)
    if not re.fullmatch(r"[!-~]{1,500}", given):
        raise ValueError("is no token: it holds a space or what is no ASCII")
    return given


def path(value: object) -> Path:
    return Path(text(value)).expanduser().absolute()


_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_ENDPOINT = re.compile(rf"(?:{_HOST.pattern}|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{{1,5}}))?")


def listed(value: object) -> tuple[str, ...]:
    """The parts of a comma-separated text, or of a list."""
    parts = value.split(",") if isinstance(value, str) else [str(part) for part in cast("list[Any]", value)]
    return tuple(part.strip() for part in parts if part.strip())


def hosts(value: object) -> tuple[str, ...]:
    """Each is a host, *.suffix or address, with or without a port, or a network."""
    for host in (hosts := listed(value)):
        if not _is_endpoint(host):
            _network(host)
    return hosts


def _is_endpoint(text: str) -> bool:
    match = _ENDPOINT.fullmatch(text)
    return match is not None and 0 < int(match["port"] or 80) < 65536


_BINDING = re.compile(r"(?P<name>[A-Z][A-Z0-9_]{0,63})@(?P<host>.+)")


def bindings(value: object) -> tuple[str, ...]:
    """Each is NAME@host, the host as in `hosts`, but no network."""
    for part in (parts := listed(value)):
        match = _BINDING.fullmatch(part)
        if match is None or not _is_endpoint(match["host"]):
            raise ValueError(f"{part!r} is not NAME@host, NAME@host:port or NAME@*.suffix")
    return parts


def programs(value: object) -> tuple[str, ...]:
    for part in (parts := listed(value)):
        if not part.startswith("/") or "\0" in part:
            raise ValueError(f"{part!r} is no absolute path")
    return parts


def variables(value: object) -> tuple[str, ...]:
    for part in (parts := listed(value)):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part) or part.startswith("DUELINE_"):
            raise ValueError(f"{part!r} is no name of an environment variable, or one of ours")
    return parts


def topics(value: object) -> tuple[str, ...]:
    for part in (parts := listed(value)):
        if not re.fullmatch(r"[A-Za-z0-9._-]{0,249}\*|[A-Za-z0-9._-]{1,249}", part):
            raise ValueError(f"{part!r} is neither the name of a topic nor prefix*")
    return parts


def address(value: object) -> str:
    given = text(value).strip("[]")
    if not _HOST.fullmatch(given) or given.startswith("*"):
        try:
            ipaddress.ip_address(given)
        except ValueError:
            raise ValueError(f"{given!r} is neither a host name nor an address") from None
    return given


def _network(text: str) -> None:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is neither a host, host:port, *.suffix nor a network") from None
