"""The notification store: every mail that was accepted, and the idempotency keys that will not be accepted
again.

One SQLite file, shared by the SMTP server, which writes, and the workers, which ask. Whether a mail is
accepted is decided by the primary key of `keys`, in the transaction that stores the mail: of two attempts at
the same mail, one is refused however they interleave.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

TIMEOUT_S = 5.0
StoppedBy = Literal["lookup", "server"]

_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE keys (idempotency_key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE mails (idempotency_key TEXT NOT NULL, token TEXT NOT NULL, invoice INTEGER NOT NULL,
                    recipient TEXT NOT NULL, message BLOB NOT NULL);
CREATE TABLE stopped (idempotency_key TEXT NOT NULL, token TEXT NOT NULL, stopped_by TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A mail as it arrived. `token` is the fencing token of the attempt that sent it."""

    idempotency_key: str
    token: int
    invoice: int
    recipient: str
    message: bytes


class Stored(NamedTuple):
    """An accepted mail, as far as the report needs it."""

    idempotency_key: str
    token: int
    invoice: int
    recipient: str


class Stopped(NamedTuple):
    """A mail that was not sent again, and who stopped it: the worker's look-up or the server's refusal."""

    idempotency_key: str
    token: int
    stopped_by: StoppedBy


class Mailbox:
    """One connection, safe from any thread; other processes have theirs. sqlite3.OperationalError if the file
    stays locked for TIMEOUT_S. It is kept open because closing the last one cleans up the log, which takes
    milliseconds.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=TIMEOUT_S, check_same_thread=False)
        if create:
            self._connection.executescript(_SCHEMA)
        # Survives the death of any process, which is what is tried here; not the machine's.
        self._connection.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        self._connection.close()

    def known(self, idempotency_key: str) -> bool:
        """Whether a mail with this key was accepted."""
        query = "SELECT 1 FROM keys WHERE idempotency_key = ?"
        with self._transaction() as connection:
            return connection.execute(query, (idempotency_key,)).fetchone() is not None

    def accept(self, mail: Mail) -> bool:
        """Store the mail unless its key is known; then False, and the refusal is stored instead."""
        with self._transaction() as connection:
            insert = "INSERT OR IGNORE INTO keys VALUES (?)"
            if connection.execute(insert, (mail.idempotency_key,)).rowcount == 0:
                _stop(connection, mail.idempotency_key, mail.token, "server")
                return False
            connection.execute(
                "INSERT INTO mails VALUES (?, ?, ?, ?, ?)",
                # SQLite's integers are 64 bits wide, but a token is text in whatever others may read.
                (mail.idempotency_key, str(mail.token), mail.invoice, mail.recipient, mail.message),
            )
            return True

    def note_stopped(self, idempotency_key: str, token: int) -> None:
        """A worker found the key and sent nothing."""
        with self._transaction() as connection:
            _stop(connection, idempotency_key, token, "lookup")

    def count(self) -> int:
        """Mails accepted so far."""
        with self._transaction() as connection:
            return int(connection.execute("SELECT count(*) FROM mails").fetchone()[0])

    def mails(self) -> list[Stored]:
        """Every accepted mail."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT idempotency_key, token, invoice, recipient FROM mails")
            return [Stored(key, int(token), invoice, recipient) for key, token, invoice, recipient in rows]

    def stopped(self) -> list[Stopped]:
        """Every duplicate that was stopped."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT idempotency_key, token, stopped_by FROM stopped")
            return [Stopped(key, int(token), stopped_by) for key, token, stopped_by in rows]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._connection as connection:
            yield connection


def _stop(connection: sqlite3.Connection, idempotency_key: str, token: int, stopped_by: StoppedBy) -> None:
    connection.execute("INSERT INTO stopped VALUES (?, ?, ?)", (idempotency_key, str(token), stopped_by))
