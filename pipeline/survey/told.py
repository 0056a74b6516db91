"""What a home says of first runs: that they were emitted, and where to."""

from __future__ import annotations

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.core.ids import keyed_id
from pipeline.core.keys import ANONYMOUS, KEYED
from pipeline.emission import MOVED
from pipeline.ports import Record
from pipeline.view import END, RUN, WORK, headers_of
from pipeline.view import OCCURRENCE as OF

_FIRED, _FIRST, _PLACE = (END, b"fired"), (RUN, b"1"), 3
"""Of the headers of nearly every tombstone: the first, the third, and where the place stands."""
_USUAL = 4
_NOTHING = b"", b""
RESTORED = b"restored"


def told_to_have_fired(record: Record, key: bytes, value: bytes | None) -> tuple[bytes, bytes]:
    """The occurrence of which this record tells that run 1 was emitted, and where to, `<queue>/<work partition>`.

    A tombstone says so, and of a keyed job the state that follows the firing. Empty: the record tells nothing of it, or
    of a firing in the store that was backed up, if it was restored.
    """
    anonymous = key[:2] in ANONYMOUS
    if not (key[:2] == KEYED or (value is None and anonymous)):
        return _NOTHING
    told = headers_of(record)
    if anonymous and len(told) == _USUAL and told[0] == _FIRED and told[2] == _FIRST:
        return key[2:], told[_PLACE][1] or b""
    headers = dict(told)
    place = headers.get(WORK) or b""
    if headers.get(RUN) != b"1" or headers.get(MOVED) == RESTORED or not place:
        return _NOTHING
    if value is None and headers.get(END) != b"fired":
        return _NOTHING
    return (key[2:] if anonymous else _of_key(key, value, headers.get(OF) or b"")), place


def _of_key(key: bytes, value: bytes | None, told: bytes) -> bytes:
    """The occurrence that holds or held a key; empty if nobody can read which."""
    if value is None:
        return told
    try:
        state = codec.KEY_STATE.decode(value)
        return f"{keyed_id(key[2:].decode())}.{state.incarnation}".encode()
    except (Undecodable, UnicodeDecodeError):
        return b""
