"""The codecs of the records that every run costs, made of straight lines (`run_wire`, `ack_wire`, `schedule_wire`).

fastavro reads and writes all other types, resolves older versions of these, and is the oracle of their tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Protocol, TypeVar

from pipeline.codec import run_wire
from pipeline.codec.registry import FRAME, Codec, Registry
from pipeline.codec.run_wire import OLDER, RunHead
from pipeline.core.errors import Undecodable
from pipeline.core.job import Run

T = TypeVar("T")

EMPTY = {field.name: field.default for field in fields(Run)}
"""What the fields say that a run of an older version has not."""


class Wire(Protocol[T]):
    """A module that `tools/generate_codec.py` made.

    Reading raises ValueError or IndexError, whatever the bytes. Writing raises InvalidInput naming the field of a
    number that does not fit, or of a text that is no Unicode.
    """

    FRAME: bytes
    FINGERPRINT: str

    def read(self, data: bytes, pos: int) -> T: ...

    def write(self, value: T) -> bytes: ...


class Straight(Codec[T]):
    """`Codec` of such a module's type: the same values, the same bytes and the same refusals."""

    def __init__(self, registry: Registry, name: str, types: Mapping[str, type], wire: Wire[T]) -> None:
        super().__init__(registry, name, types)
        assert self.fingerprint == wire.FINGERPRINT, (
            f"run tools/generate_codec.py: the schema of {name} changed"
        )
        self._read: Callable[[bytes, int], T] = wire.read
        self._write: Callable[[T], bytes] = wire.write

    def encode(self, value: T) -> bytes:
        return self._write(value)

    def decode(self, data: bytes) -> T:
        if data[:FRAME] != self._frame:
            return self._decode_older(data)
        try:
            return self._read(data, FRAME)
        except (ValueError, IndexError) as error:
            raise self._refused(error) from None

    def reread(self, data: bytes) -> T:
        return self.decode(data)  # checking costs these less than not checking would cost the library

    def _decode_older(self, data: bytes) -> T:
        return self.decode(self._upgraded(data))

    def _refused(self, error: Exception) -> Undecodable:
        return Undecodable(f"{self.name}: {'truncated' if isinstance(error, IndexError) else error}")


class RunCodec(Straight[Run]):
    """The codec of Run, which can also look at no more than the head of one.

    Runs of older versions wait in the log for as long as their jobs are not due, so they are read as straight: as the
    beginning of one of this version.
    """

    def __init__(self, registry: Registry, name: str, types: Mapping[str, type]) -> None:
        super().__init__(registry, name, types, run_wire)

    def _decode_older(self, data: bytes) -> Run:
        behind = OLDER.get(data[:FRAME])
        if behind is None:
            return super()._decode_older(data)
        run = self.decode(self._frame + data[FRAME:] + bytes(len(behind)))
        if any(getattr(run, name) != EMPTY[name] for name in behind):
            raise Undecodable(f"{self.name}: trailing bytes")
        return run

    def peek(self, data: bytes) -> RunHead:
        """The leading fields only, as strictly read as by `decode`; blind to what follows them."""
        if data[:FRAME] != self._frame and data[:FRAME] not in OLDER:
            data = self._upgraded(data)
        try:
            return run_wire.peek(data, FRAME)
        except (ValueError, IndexError) as error:
            raise self._refused(error) from None
