"""Secrets by reference: a payload says `${secret:NAME}`, the worker puts the value in, and takes care that it goes
only where the operator said, and into no result, error or log."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pipeline.config import SECRET_PREFIX
from pipeline.core.handler import InvalidPayload
from pipeline.handlers.addresses import Endpoint, endpoint

REFERENCE = re.compile(r"\$\{secret:([^}]*)\}")
HIDDEN = "***"
_SIZE_LIMIT = 8_192


class SecretMissing(Exception):
    """A secret that may be sent has no usable value on this worker; another one, or a later attempt, may have it."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """`bound[NAME]` = the hosts that it may go to; `directory` holds those that no variable has."""

    bound: dict[str, tuple[Endpoint, ...]]
    directory: Path | None

    def value(self, field: str, name: str) -> str:
        """InvalidPayload naming the field if no setting knows it; SecretMissing if it has no value here."""
        if name not in self.bound:
            raise InvalidPayload(f"{field}: no secret {name[:80]!r} is named in DUELINE_HTTP_SECRETS")
        value = os.environ.get(SECRET_PREFIX + name) or self._read(name)
        # A secret of nothing would be sent as nothing, and every place of a text would hold it.
        if not value or not re.fullmatch(r"[\x20-\x7e]+", value):
            raise SecretMissing(f"secret {name} is not set on this worker, or is no line of ASCII")
        return value

    def _read(self, name: str) -> str | None:
        if self.directory is None:
            return None
        try:
            with (self.directory / name).open("rb") as file:
                return file.read(_SIZE_LIMIT).decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SecretMissing(f"secret {name} cannot be read: {type(error).__name__}") from None

    def check_host(self, field: str, names: Iterable[str], scheme: str, host: str, port: int) -> None:
        """InvalidPayload if one of these must not go there. In clear text only where the operator named the port."""
        for name in names:
            known = [place for place in self.bound[name] if place.covers(host, port)]
            if not known:
                raise InvalidPayload(f"{field}: secret {name} may not be sent to {host}:{port}")
            if scheme != "https" and not any(place.port for place in known):
                raise InvalidPayload(f"{field}: secret {name} is sent over https only")


def bound(bindings: Iterable[str]) -> dict[str, tuple[Endpoint, ...]]:
    """The setting `http_secrets`, by name."""
    found: dict[str, tuple[Endpoint, ...]] = {}
    for text in bindings:
        name, _, host = text.partition("@")
        found[name] = (*found.get(name, ()), endpoint(host))
    return found


@dataclass(frozen=True, slots=True)
class Mask:
    """Hides the values of secrets, in the forms in which they come back."""

    forms: tuple[str, ...]

    def text(self, text: str) -> str:
        for form in self.forms:
            text = text.replace(form, HIDDEN)
        return text

    def data(self, data: bytes) -> bytes:
        for form in self.forms:
            data = data.replace(form.encode(), HIDDEN.encode())
        return data


def mask(values: Iterable[str]) -> Mask:
    """As they are, and as URLs and JSON write them; the longest first, for one may hold another."""
    forms = {
        form
        for value in values
        for form in (value, quote(value), quote(value, safe=""), json.dumps(value)[1:-1])
    }
    return Mask(tuple(sorted(forms, key=len, reverse=True)))
