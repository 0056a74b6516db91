"""Any order of attempts, commits and crashes, beside a model of what a sink promises."""

from __future__ import annotations

import sqlite3
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from unit.sinks.given import attempt

from pipeline.sinks import Fenced, SqlSink

KEYS = st.sampled_from(["a", "b"])
OCCURRENCES = st.integers(1, 3)
TOKENS = st.integers(1, 4)


class Sinks(RuleBasedStateMachine):
    """One transaction is open at a time; the model keeps what is committed and what the open one sees."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = sqlite3.connect(":memory:")
        self.sink = SqlSink()
        self.sink.create_table(self.connection)
        self.connection.execute("CREATE TABLE done (key TEXT)")
        self.connection.commit()
        self.fences = 0
        self.done: dict[str, tuple[int, int, int]] = {}
        self.last: tuple[int, int] | None = None
        self.saved = ({}, None)
        self.open = False

    def teardown(self) -> None:
        self.connection.close()

    @rule(key=KEYS, occurrence=OCCURRENCES, token=TOKENS, value=st.integers(0, 9))
    def effect(self, key: str, occurrence: int, token: int, value: int) -> None:
        """Key -> the occurrence that did it, the largest token of it that asked, the result."""
        self.open = True
        known = self.done.get(key)
        ctx = attempt(token, key=key, occurrence=f"j{occurrence}")
        if known is not None and known[0] == occurrence and known[1] > token:
            self.refused(lambda: self.sink.once(ctx, self.connection))
            return
        effect = self.sink.once(ctx, self.connection)
        assert bool(effect) is (known is None)
        if effect:
            effect.keep(value)
            self.connection.execute("INSERT INTO done VALUES (?)", (key,))
            self.done[key] = occurrence, token, value
        else:
            assert known is not None
            assert effect.result == known[2]
            if known[0] == occurrence:
                self.done[key] = occurrence, token, known[2]

    @rule(occurrence=OCCURRENCES, token=TOKENS)
    def write(self, occurrence: int, token: int) -> None:
        """The nominal time of an occurrence is its number."""
        self.open = True
        ctx = attempt(token, occurrence=f"s{occurrence}", nominal=timedelta(seconds=-occurrence))
        if self.last is not None and self.last[0] == occurrence and self.last[1] > token:
            self.refused(lambda: self.sink.newest(ctx, self.connection, "r"))
            return
        newest = self.last is None or (occurrence, token) >= self.last
        assert self.sink.newest(ctx, self.connection, "r") is newest
        if newest:
            self.last = occurrence, token

    def refused(self, ask: object) -> None:
        assert callable(ask)
        try:
            ask()
        except Fenced:
            self.fences += 1
            self.crash()
        else:
            raise AssertionError("an older attempt was let in")

    @precondition(lambda self: self.open)
    @rule()
    def commit(self) -> None:
        self.connection.commit()
        self.saved = (dict(self.done), self.last)
        self.open = False

    @precondition(lambda self: self.open)
    @rule()
    def crash(self) -> None:
        self.connection.rollback()
        self.done, self.last = dict(self.saved[0]), self.saved[1]
        self.open = False

    @invariant()
    def each_effect_is_there_once(self) -> None:
        assert sorted(key for (key,) in self.connection.execute("SELECT key FROM done")) == sorted(self.done)
        assert self.sink.fenced == self.fences


TestSinks = Sinks.TestCase
TestSinks.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
