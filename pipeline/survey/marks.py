"""What the acks say of the runs of one work partition: a mark for each of its offsets, nine bytes.

An ack names the offset of its run, so joining the two topics takes no look-up by id and no memory that follows the
number of runs: the marks stand in a file without a name. A mark holds the run's own hash too: a work topic that was
made anew counts its offsets from 0 again, and an ack of the old one must say nothing of a run of the new.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from pipeline import codec
from pipeline.codec.wire import Malformed, read_long
from pipeline.core.errors import Undecodable
from pipeline.core.job import AckState
from pipeline.core.token import split_token
from pipeline.ports import Record, Span
from pipeline.survey.ground import Ground
from pipeline.survey.seen import State

START, TERMINAL = b"s/", b"t/"
"""How the keys of the acks begin that speak of a run."""
_STATES = {state.value.encode(): n for n, state in enumerate(AckState, 1)}
STARTED, RELEASED = _STATES[b"started"], _STATES[b"released"]
LAST_OPEN = max(STARTED, RELEASED)
"""Above it are the terminal ones."""
RUN_AT = 4
"""Bits of a code below the run that is in the token of a terminal ack; 0 there: of none, or of a run that does not fit,
or it is not the only ack of its run, or of another era than the first that was seen."""
UNREADABLE = max(_STATES.values()) + 1
ENDED = {_STATES[state.value.encode()]: State(state.value) for state in AckState if state.terminal}
ENDED[UNREADABLE] = State.UNREADABLE
"""What a run came to, by code."""
CODE = (1 << RUN_AT) - 1
_RUNS = 15
_FRAME = codec.ACK.frame
_FIRST_RUN = b"/1"
_OPENINGS = 8
"""Beginnings that are looked for before an ack is read field by field."""


class Word(NamedTuple):
    """What an ack says: a code, the offset of its run, and that run's hash."""

    code: int
    offset: int
    mark: int


def run_hash(occurrence: bytes, run: int) -> int:
    """Of a run, as the keys of its acks have it between their letter and their last number."""
    return hash(occurrence + _FIRST_RUN if run == 1 else b"%b/%d" % (occurrence, run))


def read_ack(key: bytes, value: bytes) -> Word | None:
    """What a started or terminal ack says; None if nobody can read it."""
    try:
        ack = codec.ACK.decode(value)
    except Undecodable:
        return None
    code = _STATES[ack.state.value.encode()]
    return Word(code, ack.work_offset, hash(key[2 : key.rfind(b"/")]))


def token_of(value: bytes) -> int | None:
    """The token in an ack; None if nobody can read it."""
    try:
        at = 12 + value[10]
        if _has_like_ids(value) and value[at] < 128 and value[at + 1] < 128:  # the run, and the attempt
            return read_long(value, at + 2)[0]
    except (IndexError, Malformed):
        return None
    try:
        return codec.ACK.decode(value).token
    except Undecodable:
        return None


def _has_like_ids(value: bytes) -> bool:
    """Whether it is an ack that begins with two ids of one length below 64."""
    return value.startswith(_FRAME) and value[10] < 128 and value[11 + (value[10] >> 1)] == value[10]


def _is_instant(value: bytes, at: int) -> bool:
    """Whether a number of six bytes stands there: epoch milliseconds from 1987 to 2039."""
    return int.from_bytes(value[at : at + 6], "little") & 0x8080_8080_8080 == 0x0080_8080_8080


class Marks:
    """By offset, how each run within a span of a work partition stands. Terminal outranks open, else the last
    counts."""

    def __init__(self, span: Span, ground: Ground | None = None) -> None:
        """`ground` tells which acks are of a newer version; None: none is."""
        self._ground = ground
        self._newer: set[int] = set()
        """Hashes of runs that such an ack speaks of: as many as there are."""
        self._start = span.start
        self._count = max(1, span.end - span.start)
        with tempfile.TemporaryFile() as file:
            file.truncate(9 * self._count)
            self._map = mmap.mmap(file.fileno(), 0)
        whole = memoryview(self._map)
        self._hashes = whole[: 8 * self._count].cast("q")
        self._codes = whole[8 * self._count :]
        self._era = 0
        self._openings: list[tuple[bytes, int, int]] = []
        """What acks of one kind have in common behind their ids, its length, and their code."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for view in (self._hashes, self._codes):
            view.release()
        self._map.close()

    def code(self, offset: int, occurrence: bytes, run: int) -> int:
        """Of the run that stands there; 0: no ack speaks of it. UNREADABLE: one does, and nobody here can read it."""
        return self.raw_code(offset, occurrence, run) & CODE

    def raw_code(self, offset: int, occurrence: bytes, run: int = 1) -> int:
        """The same, and from RUN_AT on the run of the token."""
        at = offset - self._start
        code = self._codes[at]
        if code and self._hashes[at] != (
            hash(occurrence + _FIRST_RUN) if run == 1 else run_hash(occurrence, run)
        ):
            code = 0
        if self._newer and code <= LAST_OPEN and run_hash(occurrence, run) in self._newer:
            return UNREADABLE
        return code

    def learn(self, records: Sequence[Record], since: int) -> None:
        """Take in what these records of the acks topic say; starts before the offset `since` are of no concern.
        A million runs have two million of them: what is alike is compared, not read."""
        codes, hashes = self._codes, self._hashes
        for record in records:
            key = record.key() or b""
            kind = key[:2]
            if kind != TERMINAL and (kind != START or (record.offset() or 0) < since):
                continue
            value = record.value()
            if value is None:
                continue
            code, offset = self._peek(value)
            if code:
                at, mark = offset - self._start, hash(key[2 : key.rfind(b"/")])
                if 0 <= at < self._count and not codes[at]:  # as nearly always
                    codes[at], hashes[at] = code, mark
                else:
                    self._set(code, offset, mark)
            elif (word := read_ack(key, value)) is not None:
                sound = 0 if word.code <= LAST_OPEN else self._sound(token_of(value) or 0)
                self._set(word.code | sound, word.offset, word.mark)
            elif self._ground is not None and self._ground.is_newer(codec.ACK, value, record.topic() or ""):
                self._newer.add(hash(key[2 : key.rfind(b"/")]))

    def _sound(self, token: int) -> int:
        """The run of the token, at RUN_AT. Of one era, they grow as the runs do."""
        try:
            split = split_token(token)
        except Undecodable:
            return 0
        self._era = self._era or split.era
        return split.run << RUN_AT if split.run <= _RUNS and split.era == self._era else 0

    def _set(self, code: int, offset: int, mark: int) -> None:
        at = offset - self._start
        if not 0 <= at < self._count:
            return
        known = self._codes[at]
        if known > LAST_OPEN and self._hashes[at] == mark:
            if code > LAST_OPEN:
                self._codes[at] = code & CODE  # acked twice
        else:
            self._codes[at], self._hashes[at] = code, mark

    def _peek(self, value: bytes) -> tuple[int, int]:
        """Code and work offset of an ack as our workers write it; (0, 0): it is to be read in full."""
        try:
            if not value.startswith(_FRAME):
                return 0, 0
            at = 12 + value[10]  # behind two ids of one length
            for opening, length, meaning in self._openings:
                if value.startswith(opening, at):
                    at, code = at + length, meaning
                    break
            else:
                return self._peek_fields(value, at)
            low, middle = value[at + 6], value[at + 7]
            if low & 1 or not _is_instant(value, at):
                return 0, 0
            if low < 128:
                return code, low >> 1
            if middle < 128:
                return code, (low & 127 | middle << 7) >> 1
            return code, read_long(value, at + 6)[0]
        except (IndexError, Malformed):
            return 0, 0

    def _peek_fields(self, value: bytes, begin: int) -> tuple[int, int]:
        """The same for one of a kind that was not met yet."""
        at = begin
        if not _has_like_ids(value):
            return 0, 0
        if value[at] > 127 or value[at + 1] > 127 or value[at + 10] > 127 or value[at + 9] < 128:
            return 0, 0  # a run or an attempt over 63, or a token that is not nine bytes long
        token, at = read_long(value, at + 2)
        at += 1 + (value[at] >> 1)  # the worker, and the handler
        at += 1 + (value[at] >> 1)
        end = at + 1 + (value[at] >> 1)
        code = _STATES.get(value[at + 1 : end], 0)
        if not code or not _is_instant(value, end):
            return 0, 0
        if code > LAST_OPEN:
            code |= self._sound(token)
        if len(self._openings) < _OPENINGS:
            self._openings.append((value[begin:end], end - begin, code))
        return code, read_long(value, end + 6)[0]
