"""An attempt after the other at the same keys, as a process or a thread of its own; and a worker that freezes."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from contextlib import closing

import psycopg
from unit.sinks.given import TOKENS, attempt, pay

from pipeline.sinks import Fenced, SqlSink

KEYS = [f"k{n}" for n in range(50)]


def race(dsn: str, seed: int, attempts: int = 250) -> Counter[str]:
    """Attempts by outcome; one in ten dies between key and effect."""
    chance, sink, seen = random.Random(seed), SqlSink(), Counter[str]()
    with closing(psycopg.connect(dsn)) as connection:
        for _ in range(attempts):
            ctx = attempt(chance.choice(TOKENS), key=chance.choice(KEYS))
            if chance.random() < 0.1:
                try:
                    sink.once(ctx, connection)
                    seen["died"] += 1
                except Fenced:
                    seen["fenced"] += 1
                connection.rollback()
            else:
                seen[pay(sink, ctx, connection, "%s")] += 1
    assert seen["fenced"] == sink.fenced
    return seen


def freeze(dsn: str) -> str:
    """Stops between the begin of its transaction and its write; goes on when it gets SIGCONT."""
    sink = SqlSink()
    with closing(psycopg.connect(dsn)) as connection:
        connection.execute("SELECT 1")
        os.kill(os.getpid(), signal.SIGSTOP)
        return f"{pay(sink, attempt(TOKENS[0]), connection, '%s')} {sink.fenced}"


if __name__ == "__main__":
    what, dsn, *rest = sys.argv[1:]
    print(freeze(dsn) if what == "freeze" else race(dsn, int(rest[0])).total())
