"""The codec of the one record that every path handles, made of straight lines (`run_wire`).

fastavro reads and writes all other types, resolves older versions of this one, and is the oracle of its tests.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.codec import run_wire
from pipeline.codec.registry import FRAME, Codec, Registry
from pipeline.codec.run_wire import RunHead
from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.job import Run

_WIRE_FRAME = run_wire.FRAME
_read, _peek, _write = run_wire.read, run_wire.peek, run_wire.write


class RunCodec(Codec[Run]):
    """`Codec` of Run: the same values, the same bytes and the same refusals."""

    def __init__(self, registry: Registry, name: str, types: Mapping[str, type]) -> None:
        super().__init__(registry, name, types)
        assert self.fingerprint == run_wire.FINGERPRINT, (
            "run tools/generate_codec.py: schemas/run.avsc changed"
        )

    def encode(self, value: Run) -> bytes:
        try:
            return _write(value)
        except UnicodeEncodeError as error:
            raise InvalidInput(self.name, f"{error.object!r:.80} is not valid Unicode") from None

    def decode(self, data: bytes) -> Run:
        if data[:FRAME] != _WIRE_FRAME:
            data = self._upgraded(data)
        try:
            return _read(data, FRAME)
        except (ValueError, IndexError) as error:
            raise self._refused(error) from None

    def peek(self, data: bytes) -> RunHead:
        """The leading fields only, as strictly read as by `decode`; blind to what follows them."""
        if data[:FRAME] != _WIRE_FRAME:
            data = self._upgraded(data)
        try:
            return _peek(data, FRAME)
        except (ValueError, IndexError) as error:
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> Undecodable:
        return Undecodable(f"{self.name}: {'truncated' if isinstance(error, IndexError) else error}")
