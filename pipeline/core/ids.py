"""The forms of an id, each of which says where its job lives (DESIGN §4; vectors: schemas/vectors/ids.json).

The 128-bit forms are written as ULID does (github.com/ulid/spec): 26 Crockford base-32 characters of which
the first carries three bits, here in lower case, so that text order is numeric order.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.hashing import text_hash
from pipeline.core.job import Millis
from pipeline.core.names import NAME

Kind = Literal["g", "t", "b"]
"""Where an occurrence of a schedule came from: its grid, a trigger, a backfill."""

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _CROCKFORD for second in _CROCKFORD]
# Whatever is no Crockford character becomes '!', which int() refuses; it would take '_', ' ' and '+'.
_READ = bytes(b"0123456789abcdefghijklmnopqrstuv!"[_CROCKFORD.find(chr(byte))] for byte in range(256))

_J = ord("j")
_LENGTH = 27
_RANDOM_BITS = 80
_KEY_BITS = 96
_OFFSET_BITS = 40
_DUE_LIMIT = 1 << 48
_OFFSET_LIMIT = 1 << 63
_NUMBER = r"(0|[1-9][0-9]{0,18})"
_INCARNATION = re.compile(rf"\.{_NUMBER}")
_OCCURRENCE = re.compile(rf"s:({NAME.pattern}):{_NUMBER}:([gtb]):((?:{NAME.pattern})?):{_NUMBER}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnonymousId:
    """`j…`: a one-shot job without a key. Its job id and its occurrence id are the same text."""

    id: str
    due_at: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedId:
    """`k…` a keyed job (`incarnation` None), or `k….<incarnation>`, its occurrence."""

    id: str
    home_hash: int
    incarnation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOccurrence:
    """`s:…`: one instant of a schedule. `manual_id` names the trigger or backfill; empty on the grid."""

    schedule_id: str
    incarnation: int
    kind: Kind
    manual_id: str
    nominal_at: Millis


def anonymous_id(due_at: int, random80: int) -> str:
    """The id of a one-shot job due at `due_at` (epoch ms), unique by 80 random bits; ids sort by due time.

    InvalidInput if `due_at` does not fit 48 bits; ValueError if `random80` does not fit 80.
    """
    if not 0 <= due_at < _DUE_LIMIT:
        raise InvalidInput("due_at", f"{due_at} ms is not within 48 bits")
    if random80 >> _RANDOM_BITS:
        raise ValueError(f"{random80} is not 80 random bits")
    return _write("j", due_at << _RANDOM_BITS | random80)


def due_of(job_id: str) -> Millis:
    """The instant in an anonymous id; Undecodable if it is none."""
    return Millis(_read(job_id, "j") >> _RANDOM_BITS)


@lru_cache(maxsize=1 << 15)
def due_in(job_id: bytes) -> int:
    """`due_of` for whoever reads many: the instant in the bytes of an anonymous id; Undecodable if it is none.
    Remembered for the size of a batch: it is asked for where a job lives, where it stood and where it is put."""
    try:
        number = int(job_id[1:].translate(_READ), 32)
    except ValueError:
        raise _no_id(job_id.decode("utf-8", "replace")) from None
    if len(job_id) != _LENGTH or job_id[0] != _J or number >> 128:
        raise _no_id(job_id.decode("utf-8", "replace"))
    return number >> _RANDOM_BITS


def keyed_id(key: str) -> str:
    """The id of the job with this key: its home hash and 12 bytes of SHA-256, computable by any client."""
    return _write("k", text_hash(key) << _KEY_BITS | _sha256_start(key, 12))


def keyed_home_hash(keyed: str) -> int:
    """`text_hash(key)` read back from a keyed id or its occurrence; Undecodable if it is neither."""
    return _parse_keyed(keyed).home_hash


def incarnation(era: int, offset: int) -> int:
    """That of what the create command at this offset makes. A restore begins logs at offset 0, and a new era: without
    that in it, a job could get the occurrence, and so the idempotency key, of one that is long done."""
    return max(0, era - 1) << _OFFSET_BITS | offset


def occurrence_of_keyed(keyed: str, incarnation: int) -> str:
    """The occurrence of a keyed job of this incarnation."""
    return f"{keyed}.{incarnation}"


def schedule_occurrence(
    schedule_id: str, incarnation: int, kind: Kind, manual_id: str, nominal_at: int
) -> str:
    """The id of one instant of a schedule. ValueError if it could not be read back."""
    text = f"s:{schedule_id}:{incarnation}:{kind}:{manual_id}:{nominal_at}"
    try:
        parse_occurrence(text)
    except Undecodable as error:
        raise ValueError(str(error)) from error
    return text


def command_job_id(due_at: int, command: uuid.UUID | str) -> str:
    """The id of the job that a create command without a key makes: the same however often it is executed.

    Hashes the canonical text of the uuid (lower case, hyphens). Undecodable if `command` is no uuid.
    """
    try:
        text = str(uuid.UUID(str(command)))
    except ValueError:
        raise Undecodable(f"{_shown(str(command))} is no command uuid") from None
    return anonymous_id(due_at, _sha256_start(text, 10))


_ANONYMOUS = re.compile(r"j[0-7][0-9a-hjkmnp-tv-z]{25}")


def check_id(text: str) -> None:
    """What `parse_id` checks of any id, without making anything of it. Undecodable."""
    if _ANONYMOUS.fullmatch(text) is None:
        parse_id(text)


def parse_id(text: str) -> AnonymousId | KeyedId | ScheduleOccurrence:
    """Any job or occurrence id, by its form; Undecodable on everything else."""
    match text[:2]:
        case "s:":
            return parse_occurrence(text)
        case start if start[:1] == "k":
            return _parse_keyed(text)
        case _:
            return AnonymousId(id=text, due_at=due_of(text))


@lru_cache(maxsize=1 << 14)
def parse_occurrence(text: str) -> ScheduleOccurrence:
    """The occurrence of a schedule; Undecodable if `text` is none. Remembered for the size of a batch, as `due_in`."""
    match = _OCCURRENCE.fullmatch(text)
    if match is None:
        raise _no_id(text)
    incarnation, nominal_at = int(match[2]), int(match[5])
    kind = _kind(match[3])
    if incarnation >= _OFFSET_LIMIT or nominal_at >= _DUE_LIMIT or (kind == "g") != (match[4] == ""):
        raise _no_id(text)
    return ScheduleOccurrence(
        schedule_id=match[1],
        incarnation=incarnation,
        kind=kind,
        manual_id=match[4],
        nominal_at=Millis(nominal_at),
    )


def is_of_grid(id_: str) -> bool:
    """Whether it is an occurrence that its schedule's expression made due, and not a trigger or a backfill."""
    return id_.startswith("s:") and ":g::" in id_


def _write(form: str, number: int) -> str:
    """`form` + the 26 characters of a 128-bit number. Unrolled by pairs: a create pays for this each time."""
    a, b, c = number >> 80, number >> 40 & 0xFF_FFFF_FFFF, number & 0xFF_FFFF_FFFF
    return (
        f"{form}{_PAIRS[a >> 40]}{_PAIRS[a >> 30 & 1023]}{_PAIRS[a >> 20 & 1023]}{_PAIRS[a >> 10 & 1023]}"
        f"{_PAIRS[a & 1023]}"
        f"{_PAIRS[b >> 30]}{_PAIRS[b >> 20 & 1023]}{_PAIRS[b >> 10 & 1023]}{_PAIRS[b & 1023]}"
        f"{_PAIRS[c >> 30]}{_PAIRS[c >> 20 & 1023]}{_PAIRS[c >> 10 & 1023]}{_PAIRS[c & 1023]}"
    )


def _read(text: str, form: str) -> int:
    """The 128 bits of `<form>` + 26 characters."""
    try:
        number = int(text[1:].encode("ascii").translate(_READ), 32)
    except ValueError:
        raise _no_id(text) from None
    if len(text) != _LENGTH or text[0] != form or number >> 128:
        raise _no_id(text)
    return number


def _parse_keyed(text: str) -> KeyedId:
    home_hash = _read(text[:_LENGTH], "k") >> _KEY_BITS
    if home_hash >> 31:
        raise _no_id(text)
    if len(text) == _LENGTH:
        return KeyedId(id=text, home_hash=home_hash)
    match = _INCARNATION.fullmatch(text, _LENGTH)
    if match is None or int(match[1]) >= _OFFSET_LIMIT:
        raise _no_id(text)
    return KeyedId(id=text[:_LENGTH], home_hash=home_hash, incarnation=int(match[1]))


def _sha256_start(text: str, length: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:length], "big")


def _kind(text: str) -> Kind:
    return "g" if text == "g" else "t" if text == "t" else "b"


def _no_id(text: str) -> Undecodable:
    return Undecodable(f"{_shown(text)} is no job or occurrence id")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
