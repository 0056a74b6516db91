"""From what a user asks for to the run that is stored: every check, and no store (DESIGN §6, §9).

Pure. Whatever is wrong is an InvalidInput that names the option, before anything is written.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypedDict

from pipeline.config import Settings
from pipeline.core.errors import InvalidInput
from pipeline.core.handler import Duration
from pipeline.core.hashing import text_hash
from pipeline.core.ids import anonymous_id
from pipeline.core.job import EARLIEST, LATEST, Command, Run
from pipeline.core.limited import limited
from pipeline.core.names import check_name
from pipeline.core.times import instant_of, parse_duration, parse_instant

TEXT_LIMIT = 512
"""UTF-8 bytes of an idempotency key, a serial group, and a name or value of labels and headers."""
PAIRS_LIMIT = 64
NAME_SHOWN = 80
"""Characters of an unknown name that are told."""
ATTEMPTS_LIMIT = 10_000

CONFLICTS = ("existing", "replace", "debounce", "reject")
"""What may be asked for when the key of a new job is taken."""
PLANNED = ("priority",)
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
    spread: Duration | None
    key: str | None
    unique: Duration | None
    on_conflict: str | None
    wait: Duration | None


requested_by: ContextVar[str | None] = ContextVar("requested_by", default=None)
"""Who asks, as its commands tell their owners; None: nobody says so."""
allowed_queues: ContextVar[frozenset[str] | None] = ContextVar("allowed_queues", default=None)
"""The queues that who asks is limited to, for owners to keep to; None: to none."""
repeatable: ContextVar[str | None] = ContextVar("repeatable", default=None)
"""What the ids of the commands that follow come from, with what each is about; None: they are new. A command whose id
comes again within half an hour is answered again, and not done again."""

OF_KEYS = frozenset({"key", "unique", "on_conflict", "wait"})
"""Options of jobs with a key: their create is a command, answered by the owner of the key."""
WAIT_MS = 5_000
"""How long an answer is waited for by default."""
_encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


_make = vars(json.encoder).get("c_make_encoder")
# What `encode` makes anew for each value, at half its cost, kept. Without its look for circles, which end as a
# RecursionError then. None where this Python has nothing of the kind.
_pieces: Callable[[Any, int], Iterable[str]] | None = _make and _make(
    None, _encoder.default, vars(json.encoder)["encode_basestring"], None, ":", ",", False, False, False
)


def _encode(payload: dict[str, Any]) -> bytes:
    if _pieces is not None:
        try:
            return "".join(_pieces(payload, 0)).encode()
        except Exception:  # noqa: BLE001, S110 -- told again below, in its own words
            pass
    return _encoder.encode(payload).encode()


_KNOWN = (frozenset({"handler", "payload"}) | JobOptions.__annotations__.keys()) - OF_KEYS
_handler = lru_cache(maxsize=1024)(lambda name: check_name("handler", name))
_queue = lru_cache(maxsize=1024)(lambda name: check_name("queue", name))
_CENTURY_S = 100 * 365 * 86_400
_DURATION = (str, int, float, timedelta)
# By type too, since True is 1.
_delay = lru_cache(maxsize=8192, typed=True)(lambda value: parse_duration("in_", value))


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
            assert request.get("key") is None, "a job with a key is a command"
        get = request.get
        handler = _name("handler", get("handler"), _handler)
        now = self._now()
        nominal_at = due_at = due_of_request(get("at"), get("in_"), now)
        random80 = self._random80()
        if get("spread") is not None:
            due_at = _spread(due_at, request, random80)
        id_ = anonymous_id(due_at, random80)
        return Run(
            job_id=id_,
            occurrence_id=id_,
            due_at=due_at,
            nominal_at=nominal_at,
            created_at=now,
            run=1,
            handler=handler,
            queue=_name("queue", queue_or(self._default_queue, get("queue")), _queue),
            payload=self.payload(get("payload")),
            idempotency_key=text_of("idempotency_key", get("idempotency_key")) or id_,
            attempt_limit=_attempts(get("max_attempts")),
            timeout_ms=_timeout(get("timeout")),
            serial=text_of("serial", get("serial")),
            labels=pairs_of("labels", get("labels")),
            headers=pairs_of("headers", get("headers")),
        )

    def command(self, request: Mapping[str, Any]) -> Command:
        """The create command of a job with a key. Raises InvalidInput naming the option."""
        if not request.keys() <= _KNOWN | OF_KEYS:
            _refuse_unknown(request)
        get = request.get
        key = text_of("key", get("key"))
        command = Command(
            command_id=self._uuid(),
            verb="create",
            requested_by=requested_by.get(),
            key=key,
            handler=_name("handler", get("handler"), _handler),
            queue=_name("queue", queue_or(self._default_queue, get("queue")), _queue),
            payload=self.payload(get("payload")),
            due_at=_spread(due_of_request(get("at"), get("in_"), self._now()), request, 0),
            idempotency_key=text_of("idempotency_key", get("idempotency_key")),
            attempt_limit=_attempts(get("max_attempts")),
            timeout_ms=_timeout(get("timeout")),
            serial=text_of("serial", get("serial")),
            unique=_unique(get("unique")),
            on_conflict=_conflict(get("on_conflict")),
            labels=pairs_of("labels", get("labels")),
            headers=pairs_of("headers", get("headers")),
        )
        return _limited(command)

    def change(self, verb: str, job_id: str, **fields: Any) -> Command:
        """A command about a job that there is."""
        who = requested_by.get()
        return _limited(
            Command(command_id=self._uuid(verb, job_id), verb=verb, requested_by=who, job_id=job_id, **fields)
        )

    def about_schedule(self, verb: str, schedule_id: str | None, **fields: Any) -> Command:
        """A command about a schedule, or about those of a partition."""
        who = requested_by.get()
        id_ = self._uuid(verb, schedule_id or "")
        return _limited(
            Command(command_id=id_, verb=verb, requested_by=who, schedule_id=schedule_id, **fields)
        )

    def due_at(self, at: object, in_: object) -> int:
        """The instant asked for, epoch ms. InvalidInput unless it is exactly one of them."""
        return due_of_request(at, in_, self._now())

    def _uuid(self, *about: str) -> str:
        scope = repeatable.get()
        if scope is None or not about:
            number = self._random80() << 48 | self._random80() >> 32
        else:
            facts = "\0".join((scope, *about)).encode("utf-8", "replace")
            number = int.from_bytes(hashlib.sha256(facts).digest()[:16], "big")
        return str(uuid.UUID(int=number, version=4))

    def payload(self, payload: object) -> bytes:
        """A JSON object as it is stored; InvalidInput('payload')."""
        if payload is None:
            return b"{}"
        if not isinstance(payload, dict):
            raise InvalidInput("payload", f"must be a JSON object, not {type(payload).__name__}")
        try:
            data = _encode(payload)
        except RecursionError:
            raise InvalidInput("payload", "nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise InvalidInput("payload", f"is not JSON: {error}") from error
        if len(data) > self._payload_limit:
            raise InvalidInput(
                "payload", f"has {len(data)} bytes of JSON, the limit is {self._payload_limit}"
            )
        return data


def _limited(command: Command) -> Command:
    queues = allowed_queues.get()
    return command if queues is None else limited(command, queues)


def anywhere(settings: Settings) -> Requests:
    """What checks requests whoever the store is, and when it is there."""
    return Requests(
        now=lambda: EARLIEST,
        random80=lambda: 0,
        payload_limit=settings.payload_limit,
        default_queue=settings.queue,
    )


def check(request: Mapping[str, Any], settings: Settings) -> None:
    """InvalidInput for whatever is wrong in a request whoever the store is."""
    requests = anywhere(settings)
    wait_ms(request.get("wait"))
    if request.get("key") is None:
        requests.run(request)
    else:
        requests.command(request)


def wait_ms(wait: object) -> int:
    """How long an answer is waited for, in ms. InvalidInput('wait')."""
    return WAIT_MS if wait is None else parse_duration("wait", wait)


def due_of_request(at: object, in_: object, now: int) -> int:
    """The due time in epoch ms of what was given as `at` and `in_`, at `now`. InvalidInput naming the one."""
    if at is not None:
        if in_ is not None:
            raise InvalidInput("at", "excludes in_: give one of them")
        return instant_of("at", at) if isinstance(at, datetime) else parse_instant("at", at)
    if in_ is None:
        raise InvalidInput("at", "missing: say when it is due, by at or in (in Python in_; 0s is now)")
    if type(in_) is int and 0 <= in_ <= _CENTURY_S:
        delay = in_ * 1000
    else:
        delay = _delay(in_) if isinstance(in_, _DURATION) else parse_duration("in_", in_)
    due_at = now + delay
    if due_at > LATEST:
        raise InvalidInput("in_", f"{in_!r} from now is after 2200")
    return due_at


def _spread(at: int, request: Mapping[str, Any], random: int) -> int:
    """`at`, put off within the spread that is asked for: by the key, else the idempotency key, so that the same
    job is put off alike however often it is created; else at random."""
    spread = request.get("spread")
    width = 0 if spread is None else parse_duration("spread", spread)
    if width == 0:
        return at
    name = text_of("key", request.get("key")) or text_of("idempotency_key", request.get("idempotency_key"))
    later = at + (random if name is None else text_hash(name)) % width
    if later > LATEST:
        raise InvalidInput("spread", f"{spread!r} goes beyond 2200")
    return later


def _unique(value: object) -> str | None:
    """How long a key is held: two words, or a duration from the create command on."""
    if value is None or value in ("finished", "started"):
        return None if value is None else str(value)
    try:
        return f"{parse_duration('unique', value)}ms"
    except InvalidInput as error:
        raise InvalidInput("unique", f"is neither finished nor started: {error.problem}") from error


def _conflict(value: object) -> str | None:
    if value is None or (isinstance(value, str) and value in CONFLICTS):
        return value
    raise InvalidInput("on_conflict", f"{value!r} is none of {', '.join(CONFLICTS)}")


def _name(field: str, value: object, check: Callable[[str], str]) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, "missing" if value is None else f"must be text, not {type(value).__name__}")
    return check(value)


def text_of(field: str, value: object) -> str | None:
    """`value` if it may stand in a record, None if it is not given. InvalidInput naming `field`."""
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


def pairs_of(field: str, value: object) -> dict[str, str]:
    """Labels or headers, empty if not given. InvalidInput naming `field`, or the member."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > PAIRS_LIMIT:
        raise InvalidInput(field, f"must map at most {PAIRS_LIMIT} names to text")
    return {
        _clean(field, _named(field, name)): _clean(f"{field}.{name}", held) for name, held in value.items()
    }


def _named(field: str, name: object) -> object:
    if name == "":
        raise InvalidInput(field, "holds an empty name")
    return name


def queue_or(default: str, value: object) -> object:
    """What was asked for as a queue, which is checked yet; nothing and an empty text are the default one."""
    return default if value is None or value == "" else value


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
        if name in OF_KEYS:
            _refuse_without_key(name, request)
        elif name not in PLANNED:
            shown = str(name)[:NAME_SHOWN]  # whoever asks a server may send a name of megabytes
            close = difflib.get_close_matches(shown, [*_KNOWN, *OF_KEYS, *PLANNED], n=1)
            raise InvalidInput(
                shown or "''", f"unknown option{f'; did you mean {close[0]}?' if close else ''}"
            )
        elif request[name] is not None:
            raise InvalidInput(name, "not supported yet")


def _refuse_without_key(name: str, request: Mapping[str, Any]) -> None:
    """A wait is over at once where nobody is asked; the others would promise what only a key can keep."""
    if name != "wait" and request[name] is not None and request.get("key") is None:
        raise InvalidInput(name, "needs a key")
