"""The thread that reaches the store, folds what comes, and begins again whenever that breaks off."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.errors import DuelineError, NotFound, RebuildPartition, Refused, StoreUnreachable
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.readmodel.folding import Folding
from pipeline.readmodel.forgetting import Retention, forget
from pipeline.readmodel.open_runs import Ended, give_up
from pipeline.readmodel.processes import Processes
from pipeline.readmodel.questions import Freshness, Position
from pipeline.readmodel.rows import FORMAT
from pipeline.readmodel.session import BATCH, Left, Session, topics_of
from pipeline.readmodel.sheet import Sheet
from pipeline.readmodel.source import Connect, Place, Source
from pipeline.readmodel.way import Way, rest_s

log = logging.getLogger(__name__)

VERSION = 5
"""Of the rows; those of another version are folded anew. 4: what replays emitted. 5: lists by handler and queue."""
AGAIN_S, LONGEST_S = 0.5, 15.0
"""How long after it broke off it begins again; twice as long each time."""
CHECK_S = 60.0
"""How often it is asked whether the topics are still the same."""
FORGET_S = 5.0
END_S = 10.0
SMALL = 500
"""Records of a batch while way is given: the interpreter's lock is not held for long."""
GATHER_S = 0.02
"""After fewer than these more are let come: a batch costs as much as some ten records."""


class Following:
    """What the thread and the questions share. `changed` is notified after each batch and each problem."""

    def __init__(self, rows: RocksRows, connect: Connect, retention: Retention) -> None:
        self.rows = rows
        self.processes = Processes()
        self.changed = threading.Condition()
        self.sheet = Sheet(rows)
        self.way = Way()
        self.source: Source | None = None
        self.folding: Folding | None = None
        """Of this session, or the last one."""
        self.ended: Mapping[tuple[str, int], Ended] = {}
        """By queue and partition: runs that have ended whatever the rows say. Told by another thread."""
        self._connect = connect
        self._retention = retention
        self._problem: str | None = "the store has not been reached yet"
        self._ready = False
        self._left = Left(0, None)
        self._stepped: float | None = None
        """When all went well the last time, by time.monotonic()."""
        self._heard = 0
        self._written: Mapping[Place, int] = {}
        self._wakes: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dueline-readmodel", daemon=True)
        self._identity: dict[str, Any] = self._stored_identity()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; within a second or two, whatever the store does."""
        self._stop.set()
        with self.changed:
            self.changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(END_S)

    # -- asked by any thread ----------------------------------------------------------------------------------

    @property
    def nonce(self) -> str:
        """Another one whenever everything was folded anew."""
        return str(self._identity.get("nonce", ""))

    def identity_of(self, topic: str) -> str | None:
        """Another one after the topic was made anew; None: it is not known."""
        found: str | None = self._identity.get("topics", {}).get(topic)
        return found

    @property
    def secret(self) -> bytes:
        """The same in all servers of the store, and told to no client: which `jobs` and `meta` these are."""
        names = Names(self._identity.get("prefix", ""))
        return f"{self.identity_of(names.jobs)}/{self.identity_of(names.meta)}".encode()

    def layout(self) -> Layout:
        """As it was last heard of. StoreUnreachable if it never was."""
        return self._last().layout

    def names(self) -> Names:
        return self._last().names

    def _last(self) -> Folding:
        if self.folding is None:
            raise StoreUnreachable(self._problem or "the store has not been reached yet")
        return self.folding

    def now(self) -> int:
        """The store's time; what was heard last while it cannot be asked."""
        source = self.source
        if source is not None:
            return source.clock.now()
        return self._heard or max(self.sheet.recent.minutes, default=0) * 60_000

    def freshness(self) -> Freshness:
        left, since = self._left
        age = max(0, self.now() - since) if left and since is not None else 0
        if (
            self._problem is not None and self._stepped is not None
        ):  # nobody knows what has been written since
            age += int((time.monotonic() - self._stepped) * 1000)
        return Freshness(left, age, self._ready, self._problem)

    def has(self, position: Position) -> bool:
        """Whether what was written there has been folded."""
        return self._written.get((position.topic, position.partition), -1) > position.offset

    def wait_for(self, position: Position, timeout_ms: int) -> bool:
        if timeout_ms <= 0 or self.has(position):
            return self.has(position)
        with self.awaited(lambda: None), self.changed:
            self.changed.wait_for(lambda: self.has(position) or self._stop.is_set(), timeout_ms / 1000)
            return self.has(position)

    @contextmanager
    def awaited(self, wake: Callable[[], None]) -> Iterator[None]:
        """Somebody waits for what was written: `wake` is called after each batch, by the thread that folds, and no way
        is given to anybody."""
        with self.changed:
            self._wakes.append(wake)
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self._wakes.remove(wake)

    def _notify(self) -> None:
        """The lock is held."""
        self.changed.notify_all()
        for wake in self._wakes:
            wake()

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = AGAIN_S
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._session()
            except RebuildPartition as lost:
                self._begin_anew(str(lost))
            except (StoreUnreachable, NotFound, Refused) as error:
                self._tell(str(error))
            except DuelineError as error:
                log.warning("read model: %s", error, extra={"action": "readmodel.error"})
                self._tell(str(error))
            except Exception as error:
                log.exception("read model: unexpected", extra={"action": "readmodel.failed"})
                self._tell(f"unexpected: {type(error).__name__}: {error}"[:300])
            if time.monotonic() - began > LONGEST_S:
                pause = AGAIN_S
            self._stop.wait(pause)
            pause = min(2 * pause, LONGEST_S)

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("read model: %s", problem, extra={"action": "readmodel.problem"})
        with self.changed:
            self._problem = problem
            self._notify()

    def _session(self) -> None:
        """Until something breaks off. What was folded and not written yet is read again."""
        source = self._connect()
        try:
            self._check(source)
            self.sheet = Sheet(self.rows)
            self.folding = Folding(source.names, source.layout, self.sheet, self.processes)
            session = Session(source, self.folding, self.sheet, self.rows)
            self.source = source
            self._follow(source, session, self.folding)
        finally:
            self.source = None
            source.follow.close()
            with source.reading, source.lagging:
                source.close()

    def _follow(self, source: Source, session: Session, folding: Folding) -> None:
        checked = forgot = time.monotonic()
        while not self._stop.is_set():
            began, giving = time.thread_time(), self._gives_way()
            records = session.step(SMALL if giving else BATCH)
            left = session.left()
            with self.changed:
                if records:
                    self._heard = records[-1].timestamp()[1]
                self._written, self._left, self._problem = session.written, left, None
                self._stepped = time.monotonic()
                self._ready = self._ready or (session.complete and not left.number)
                self._notify()
            now = time.monotonic()
            if now - checked > CHECK_S:
                self._check(source)
                session.follow_fleet()
                checked = now
            if now - forgot > FORGET_S:
                if forget(self.sheet, folding.newest, self._retention):
                    self.sheet.write()
                self._give_up(folding)
                forgot = now
            if giving:
                self._rest(rest_s(time.thread_time() - began))
            elif 0 < len(records) < SMALL:
                self._rest(GATHER_S)

    def _give_up(self, folding: Folding) -> None:
        """What waits for an end that will not come."""
        given = unseen = 0
        for (queue, partition), ended in self.ended.items():
            if self._written.get((folding.names.acks(queue), partition), 0) >= ended.acks:
                both = give_up(self.sheet, queue, partition, ended, folding.newest)
                given, unseen = given + both[0], unseen + both[1]
        if given:
            self.sheet.write()
        if unseen:
            log.warning(
                "read model: %d runs were deleted by the retention of their topic before they had ended",
                unseen,
                extra={"action": "readmodel.deleted_unseen", "runs": unseen},
            )

    def _gives_way(self) -> bool:
        return not self._wakes and self.way.given(self.freshness().age_ms)

    def _rest(self, seconds: float) -> None:
        """So long, or until somebody waits for what is not folded yet."""
        with self.changed:
            self.changed.wait_for(lambda: bool(self._wakes) or self._stop.is_set(), seconds)

    # -- which topics they are --------------------------------------------------------------------------------

    def _stored_identity(self) -> dict[str, Any]:
        value = self.rows.get(FORMAT)
        found: dict[str, Any] = {} if value is None else json.loads(value)
        return found

    def _check(self, source: Source) -> None:
        """Whether what is written here was folded from these topics; RebuildPartition if not."""
        topics = source.identities(topics_of(source.names, source.layout))
        found = self._stored_identity()
        wanted = {"version": VERSION, "prefix": source.names.prefix, "layout": source.layout.identity()}
        if not found:
            wanted["nonce"] = secrets.token_hex(8)
        elif any(found.get(name) != wanted[name] for name in wanted):
            raise RebuildPartition(0, f"the rows are of {_brief(found)}, what is there is {_brief(wanted)}")
        known = found.get("topics", {})
        for topic, identity in topics.items():
            if known.get(topic, identity) != identity:
                raise RebuildPartition(0, f"the topic {topic} was made anew")
        self._identity = {**found, **wanted, "topics": {**known, **topics}}
        if self._identity != found:
            self.rows.write({FORMAT: json.dumps(self._identity).encode()})

    def _begin_anew(self, reason: str) -> None:
        log.warning(
            "read model is folded anew from the beginning: %s", reason, extra={"action": "readmodel.rebuild"}
        )
        self.rows.clear()
        self.sheet = Sheet(self.rows)
        with self.changed:
            self._ready, self._written, self.ended = False, {}, {}
        self._tell(f"everything is read again: {reason}")


def _brief(identity: Mapping[str, Any]) -> str:
    return f"version {identity.get('version')} and layout {identity.get('prefix')}/{identity.get('layout')}"
