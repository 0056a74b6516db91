"""Attempts that race, each with a connection of its own to one SQLite file."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from unit.sinks.given import EFFECTS, TOKENS, attempt, pay

from pipeline.core.context import Context
from pipeline.sinks import Fenced, SqlSink


def die(sink: SqlSink, ctx: Context, connection: sqlite3.Connection) -> str:
    """Between claiming the key and the effect."""
    try:
        sink.once(ctx, connection)
        return "died"
    except Fenced:
        return "fenced"
    finally:
        connection.rollback()


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_thousand_interleaved_attempts_have_one_effect_for_each_key(tmp_path: Path, mode: str) -> None:
    path, sink = tmp_path / "app.db", SqlSink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute(EFFECTS)
        sink.create_table(connection)
        connection.commit()
    work = [(f"k{n % 50}", TOKENS[n // 50 % 4]) for n in range(1_000)]
    random.Random(7).shuffle(work)

    def run(slice_: list[tuple[str, int]]) -> Counter[str]:
        seen: Counter[str] = Counter()
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            for n, (key, token) in enumerate(slice_):
                ctx = attempt(token, key=key)
                seen[die(sink, ctx, connection) if n % 10 == 9 else pay(sink, ctx, connection, "?")] += 1
        return seen

    with ThreadPoolExecutor(4) as threads:
        slices = [work[n::4] for n in range(4)]
        total = sum(threads.map(run, slices), Counter())
    assert total.total() == 1_000
    with closing(sqlite3.connect(path)) as connection:
        effects = Counter(key for (key,) in connection.execute("SELECT key FROM paid"))
    assert effects == Counter(f"k{n}" for n in range(50))
    assert total["paid"] == 50
    assert total["fenced"] == sink.fenced > 0
