"""From what a user asks for to the run that is stored: every check, and no store (DESIGN §6, §9).

Pure. Whatever is wrong is an InvalidInput that names the option, before anything is written.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

from pipeline.config import Settings
from pipeline.core.errors import InvalidInput
from pipeline.core.handler import Duration
from pipeline.core.ids import anonymous_id
from pipeline.core.job import EARLIEST, LATEST, Run
from pipeline.core.names import check_name
from pipeline.core.times import aware, instant_of, parse_duration, parse_instant

TEXT_LIMIT = 512
"""UTF-8 bytes of an idempotency key, a serial group, and a name or value of labels and headers."""
PAIRS_LIMIT = 64
ATTEMPTS_LIMIT = 10_000

PLANNED = ("key", "unique", "on_conflict", "priority", "spread", "wait")
"""Options to come: refused by name until then, for ignoring one would break what it promises."""


class JobOptions(TypedDict, total=False):
    """What a job may be asked with beside handler and payload; None = not given. See `Dueline.schedule`."""

    at: datetime | str | None
    in_: Duration | None
    idempotency_key: str | None
    queue: str | None
    labels: Mapping[str, str] | None
    headers: Mapping[str, str] | None
    max_attempts: int | None
    timeout: Duration | None
    serial: str | None


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_KNOWN = frozenset({"handler", "payload"}) | JobOptions.__annotations__.keys()
_handler = lru_cache(maxsize=1024)(lambda name: check_name("handler", name))
_queue = lru_cache(maxsize=1024)(lambda name: check_name("queue", name))


class JobRef(NamedTuple):
    """A created job; `status` is `created`, its record acknowledged; `due_at` is an aware UTC datetime."""

    id: str
    status: str
    due_at: datetime

    @classmethod
    def of(cls, run: Run) -> JobRef:
        return cls(run.job_id, "created", aware(run.due_at))


class Requests:
    """Turns requests into runs. `now` is the store's clock, `random80` gives 80 random bits."""

    def __init__(
        self, *, now: Callable[[], int], random80: Callable[[], int], payload_limit: int, default_queue: str
    ) -> None:
        self._now = now
        self._random80 = random80
        self._payload_limit = payload_limit
        self._default_queue = default_queue

    def run(self, request: Mapping[str, Any]) -> Run:
        """The run-1 record of a new anonymous job. Raises InvalidInput naming the option."""
        if not request.keys() <= _KNOWN:
            _refuse_unknown(request)
        get = request.get
        handler = _name("handler", get("handler"), _handler)
        now = self._now()
        due_at = _due_at(get("at"), get("in_"), now)
        id_ = anonymous_id(due_at, self._random80())
        return Run(
            job_id=id_,
            occurrence_id=id_,
            due_at=due_at,
            nominal_at=due_at,
            created_at=now,
            run=1,
            handler=handler,
            queue=_name("queue", get("queue") or self._default_queue, _queue),
            payload=self._payload(get("payload")),
            idempotency_key=_text("idempotency_key", get("idempotency_key")) or id_,
            attempt_limit=_attempts(get("max_attempts")),
            timeout_ms=_timeout(get("timeout")),
            serial=_text("serial", get("serial")),
            labels=_pairs("labels", get("labels")),
            headers=_pairs("headers", get("headers")),
        )

    def _payload(self, payload: object) -> bytes:
        if payload is None:
            return b"{}"
        if not isinstance(payload, dict):
            raise InvalidInput("payload", f"must be a JSON object, not {type(payload).__name__}")
        try:
            data = _encode(payload).encode()
        except RecursionError:
            raise InvalidInput("payload", "nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise InvalidInput("payload", f"is not JSON: {error}") from error
        if len(data) > self._payload_limit:
            raise InvalidInput(
                "payload", f"has {len(data)} bytes of JSON, the limit is {self._payload_limit}"
            )
        return data


def check(request: Mapping[str, Any], settings: Settings) -> None:
    """InvalidInput for whatever is wrong in a request whoever the store is."""
    Requests(
        now=lambda: EARLIEST,
        random80=lambda: 0,
        payload_limit=settings.payload_limit,
        default_queue=settings.queue,
    ).run(request)


def _due_at(at: object, in_: object, now: int) -> int:
    if at is not None:
        if in_ is not None:
            raise InvalidInput("at", "excludes in_: give one of them")
        return instant_of("at", at) if isinstance(at, datetime) else parse_instant("at", at)
    if in_ is None:
        raise InvalidInput("at", "missing: say when it is due")
    due_at = now + parse_duration("in_", in_)
    if due_at > LATEST:
        raise InvalidInput("in_", f"{in_!r} from now is after 2200")
    return due_at


def _name(field: str, value: object, check: Callable[[str], str]) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, "missing" if value is None else f"must be text, not {type(value).__name__}")
    return check(value)


def _text(field: str, value: object) -> str | None:
    if value is None:
        return None
    if value == "":
        raise InvalidInput(field, "is empty")
    return _clean(field, value)


def _clean(field: str, value: object) -> str:
    """Free text that travels in records, headers and others' databases: no NUL, nothing unencodable."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be text, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(field, "holds a lone surrogate, which has no UTF-8 form") from None
    if "\0" in value:
        raise InvalidInput(field, "holds a NUL")
    if size > TEXT_LIMIT:
        raise InvalidInput(field, f"has {size} bytes, the limit is {TEXT_LIMIT}")
    return value


def _pairs(field: str, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > PAIRS_LIMIT:
        raise InvalidInput(field, f"must map at most {PAIRS_LIMIT} names to text")
    return {
        _clean(field, _named(field, name)): _clean(f"{field}.{name}", text) for name, text in value.items()
    }


def _named(field: str, name: object) -> object:
    if name == "":
        raise InvalidInput(field, "holds an empty name")
    return name


def _attempts(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= ATTEMPTS_LIMIT:
        raise InvalidInput("max_attempts", f"{value!r} is no whole number from 1 to {ATTEMPTS_LIMIT}")
    return value


def _timeout(value: object) -> int | None:
    if value is None:
        return None
    timeout = parse_duration("timeout", value)
    if timeout == 0:
        raise InvalidInput("timeout", "must be longer than zero")
    return timeout


def _refuse_unknown(request: Mapping[str, Any]) -> None:
    """Unless all of it is None: a caller that passes an option on without a value asks for nothing."""
    for name in request.keys() - _KNOWN:
        if name not in PLANNED:
            close = difflib.get_close_matches(str(name), [*_KNOWN, *PLANNED], n=1)
            raise InvalidInput(
                str(name) or "''", f"unknown option{f'; did you mean {close[0]}?' if close else ''}"
            )
        if request[name] is not None:
            raise InvalidInput(name, "not supported yet")
