"""Folding the log: what each record of a partition of `jobs` means for its index.

Nothing is done while folding. What the owner owes becomes an entry with an action, so it survives a crash, and an
index rebuilt from the log owes exactly the same.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import InvalidInput, StopPartition, Undecodable, UnknownFingerprint
from pipeline.core.ids import keyed_id
from pipeline.core.job import EARLIEST, LATEST, Command, ReplayBatch
from pipeline.core.keys import JobsKey, JobsKind
from pipeline.core.limited import bare
from pipeline.core.names import legal
from pipeline.core.site import Site
from pipeline.core.token import LAST_RUN
from pipeline.core.topics import WORK_RETENTION_MS
from pipeline.emission import MOVED
from pipeline.filing import firing, kept, keyed, owed, scheduled, sound, sound_schedule
from pipeline.portion import REPLAY, batch_of, queue_of, replaying
from pipeline.ports import Action, Entry, Record
from pipeline.view import UNTIL, WORK, View, header, headers_of

CREATION_LIMIT_MS = 15 * 60_000
"""A `j/` record appended later than this after its `created_at` is refused: the fired memory of 30 minutes
could no longer tell whether it is a late duplicate (DESIGN §4)."""
ENDED = (b"fired", b"cancelled", b"dead")
"""How a changed job ends. A foreign tombstone of what its creator put says nothing of it."""
DIGITS, CLOCKS_MS = 16, 60_000
"""Of an instant in a header at most, and how far it may be beyond what the log's time says: whoever may append can put
anything there."""
DUPLICATE, SUPERSEDED, CHANGED = "duplicate", "superseded", b"changed"
CREATE, SCHEDULE_VERBS = "create", "schedule."
ANSWERED = "answered"
"""Of a command: its value is the answer that it was given before."""


def fold(record: Record, offset: int, key: bytes, value: bytes, site: Site, view: View, now: int) -> None:
    """File one record that is no tombstone. StopPartition if it is of a schema that was announced but is unknown."""
    folding = _Folding(record, offset, key, value, site, view, now)
    try:
        entry = folding.entry(keys.parse_jobs_key(key))
    except UnknownFingerprint as unknown:
        if folding.announced(f"{unknown.fingerprint:016x}"):
            raise StopPartition(
                f"partition {view.number} holds records of a schema that was announced but is unknown"
                f" here ({unknown.fingerprint:016x}): upgrade this process"
            ) from unknown
        entry = folding.owed(Action.DEAD, f"unknown_schema: {unknown}")
    except Undecodable as problem:
        entry = folding.owed(Action.DEAD, f"undecodable: {problem}")
    view.put(entry)


def plain_job(record: Record, offset: int, key: bytes, value: bytes, site: Site, view: View) -> Entry | None:
    """The entry of a `j/` record about which there is nothing to decide; None for all else, which `fold` looks at.
    Nearly every record passes here, and each look-up is a microsecond of every job."""
    id_ = key[2:]
    plain = codec.peek_plain(id_, value) if key.startswith(keys.JOB) else None
    if plain is None:
        return None
    due_at, created_at, queue, _ = plain
    log_time = record.timestamp()[1]
    if (
        queue not in site.layout.queues
        or not EARLIEST <= due_at <= LATEST
        or log_time - created_at > CREATION_LIMIT_MS
        or view.ended(id_, log_time) is not None
    ):
        return None
    try:
        home, work = site.layout.route(id_, queue)
    except Undecodable:
        return None
    if home != view.number:
        return None
    return tuple.__new__(Entry, (key, due_at, offset, Action.FIRE, value, f"{queue}/{work}"))


class _Folding:
    """One record being folded."""

    __slots__ = ("_key", "_now", "_offset", "_record", "_site", "_value", "_view")

    def __init__(
        self, record: Record, offset: int, key: bytes, value: bytes, site: Site, view: View, now: int
    ) -> None:
        self._record, self._offset, self._key, self._value = record, offset, key, value
        self._site, self._view, self._now = site, view, now

    def owed(self, action: int, detail: str, value: bytes | None = None) -> Entry:
        return owed(self._key, self._offset, action, self._value if value is None else value, detail)

    def announced(self, fingerprint: str) -> bool:
        site = self._site
        return fingerprint in site.layout.fingerprints or (
            site.look_again(self._now) and fingerprint in site.layout.fingerprints
        )

    def entry(self, parsed: JobsKey) -> Entry:
        match parsed.kind:
            case JobsKind.JOB:
                return self._job(parsed.id)
            case JobsKind.CHANGED:
                return self._changed(parsed.id)
            case JobsKind.RETRY:
                return self._retry(parsed)
            case JobsKind.KEYED:
                return self._keyed(parsed.id)
            case JobsKind.COMMAND:
                return self._command(parsed.id)
            case JobsKind.DONE:
                codec.EVENT.decode(self._value)
                return self._at_home(parsed.id) or self.owed(Action.DONE, "")
            case JobsKind.HIGHEST | JobsKind.STOPPED:
                return self._kept(parsed)
            case JobsKind.TAKEOVER:
                codec.TAKEOVER.decode(self._value)
                return self.owed(Action.DEAD, "forged: a takeover of another partition")
            case JobsKind.SCHEDULE:
                return self._schedule(parsed.id)

    def _log_time(self) -> int:
        return self._record.timestamp()[1]

    def _stop(self, occurrence: str, run: int | None) -> None:
        """A retry that its worker wrote while the stop was under way stands before it in the log, and the owner that
        stopped the job had not read it: to a rebuilt index it must be as dropped as to that owner (H7)."""
        key = keys.retry_key(occurrence, self._view.highest_run(occurrence) if run is None else run)
        retry = self._view.entry(key)
        if retry is not None and retry.action in (Action.FIRE, Action.GRANTED):
            self._view.put(owed(key, retry.offset, Action.DROP, b"", "stopped"))

    def _kept(self, parsed: JobsKey) -> Entry:
        until = self._log_time() + WORK_RETENTION_MS
        if parsed.kind is JobsKind.HIGHEST:
            codec.HIGHEST.decode(self._value)
            told = header(headers_of(self._record), UNTIL)  # so that its owner need not read it back
            until = min(int(told), until + CLOCKS_MS) if told.isdigit() and len(told) <= DIGITS else until
        else:
            self._stop(parsed.id, codec.EVENT.decode(self._value).run)
        return kept(self._key, self._offset, self._value, until)

    def _firing(self, head: codec.RunHead) -> Entry:
        return firing(self._site, self._key, head, self._value, self._offset, self._now)

    def _at_home(self, id_: str) -> Entry | None:
        """What to do instead if the record does not stand at the home of `id_`: move it there."""
        home = self._site.layout.home(id_)
        return None if home == self._view.number else self.owed(Action.MOVE, str(home))

    # -- anonymous jobs -----------------------------------------------------------------------------------------

    def _job(self, id_: str) -> Entry:
        head = codec.peek_run(self._value)
        if head.job_id != id_ or head.occurrence_id != id_ or head.run != 1:
            return self.owed(Action.DEAD, "forged: job_id, occurrence_id and key differ, or run is not 1")
        log_time = self._log_time()
        ended = self._view.ended(self._key[2:], log_time)
        if ended is not None:
            return self._duplicate(ended, head)
        if log_time - head.created_at > CREATION_LIMIT_MS and not _moved(self._record):
            return self.owed(Action.DEAD, "too_old: appended over 15 min after its created_at")
        return self._at_home(id_) or self._firing(head)

    def _duplicate(self, ended: bytes, head: codec.RunHead) -> Entry:
        """Its tombstone replaces the one that said how the job ended, so it says so too."""
        first = self._firing(head)
        place = first.detail if first.action == Action.FIRE else ""
        return self.owed(Action.DROP, f"{DUPLICATE} {ended.decode()} {place}", b"")

    def _changed(self, id_: str) -> Entry:
        """Written by an owner only, with the tombstone of `j/`, so age does not speak against it."""
        head = codec.peek_run(self._value)
        if head.job_id != id_ or head.occurrence_id != id_ or head.run != 1:
            return self.owed(Action.DEAD, "forged: job_id, occurrence_id and key differ, or run is not 1")
        elsewhere = self._at_home(id_)
        if elsewhere is not None:
            return elsewhere
        view, key = self._view, id_.encode()
        ended = view.ended(key, self._log_time())
        if ended in ENDED:
            return self._duplicate(ended, head)
        # Whoever wrote it: of the two records of one job only this one fires.
        before = view.entry(keys.job_key(id_))
        if before is not None:
            view.put(owed(before.record_key, before.offset, Action.DROP, b"", CHANGED.decode()))
        view.delta.ended[key] = self._log_time(), CHANGED
        return self._firing(head)

    # -- further runs -------------------------------------------------------------------------------------------

    def _retry(self, parsed: JobsKey) -> Entry:
        head = codec.peek_run(self._value)
        if head.occurrence_id != parsed.id or head.run != parsed.run + 1:
            return self.owed(Action.DEAD, "forged: occurrence_id or run does not fit the key")
        if head.run > LAST_RUN:
            return self.owed(Action.DEAD, f"token_exhausted: run {head.run} has no token")
        elsewhere = self._at_home(head.job_id)
        if elsewhere is not None:
            return elsewhere
        if self._view.entry(keys.stopped_key(parsed.id)) is not None:
            return self.owed(Action.DROP, "stopped", b"")
        if parsed.run < self._view.highest_run(parsed.id):
            return self.owed(Action.DROP, SUPERSEDED, b"")
        return self._firing(head)

    # -- keyed jobs and commands --------------------------------------------------------------------------------

    def _keyed(self, key: str) -> Entry:
        state = codec.KEY_STATE.decode(self._value)
        if not sound(state, keyed_id(key)) or self._site.layout.home(keyed_id(key)) != self._view.number:
            return self.owed(Action.DEAD, "forged: no owner writes this")
        place = header(headers_of(self._record), WORK).decode("utf-8", "replace")
        return keyed(self._site, self._key, state, self._value, self._offset, self._now, place)

    def _schedule(self, id_: str) -> Entry:
        before = self._view.entry(self._key)
        if before is not None and before.value == self._value:  # our own, come back: nothing of it is news
            return before
        state = codec.SCHEDULE.decode(self._value)
        if not sound_schedule(state, id_) or self._site.layout.home_of_name(id_) != self._view.number:
            return self.owed(Action.DEAD, "forged: no owner writes this")
        self._view.note(state.spec.source, id_)
        return scheduled(self._key, state, self._value)

    def _command(self, id_: str) -> Entry:
        command = codec.decode_command(self._value, headers_of(self._record))
        if command.command_id != id_:
            return self.owed(Action.DEAD, "forged: command_id does not fit the key")
        # Asked by the log's time: a late copy is none the later for waiting until its owner is back.
        told = self._view.ended(self._key[2:], self._log_time())
        if told is not None and _is_answer(told):
            return self.owed(Action.COMMAND, ANSWERED, told)
        # Relative times count from when the log took the command, wherever it waits afterwards.
        absolute = resolved(command, self._log_time())
        plain = absolute is command and self._value.startswith(codec.COMMAND.frame)
        value = self._value if plain else codec.COMMAND.encode(absolute)
        batch = _batch(command)
        home = self._home_of(bare(command)) if batch is None else self._home_of_run(batch.runs[0])
        if home in (None, self._view.number):
            if batch is not None:
                runs, queue = len(batch.runs), queue_of(command)
                return replaying(self._key, self._offset, value, queue, runs, self._log_time())
            return self.owed(Action.COMMAND, str(self._log_time()), value)
        if told is not None:  # its first copy is at home already, where this one could be the later by hours
            return self.owed(Action.DROP, DUPLICATE, b"")
        return self.owed(Action.MOVE, str(home), value)

    def _home_of(self, command: Command) -> int | None:
        """Where a command is executed; None: anywhere."""
        if command.verb.startswith(SCHEDULE_VERBS):
            id_ = schedule_of(command)
            return None if id_ is None else self._site.layout.home_of_name(id_)
        if command.verb == CREATE:
            return None if command.key is None else self._site.layout.home(keyed_id(command.key))
        try:
            return None if command.job_id is None else self._site.layout.home(command.job_id)
        except Undecodable:
            return None  # it is refused wherever it stands

    def _home_of_run(self, run: bytes) -> int | None:
        try:
            return self._site.layout.home(codec.peek_run(run).job_id)
        except Undecodable:
            return None


def _batch(command: Command) -> ReplayBatch | None:
    """What is to be replayed; of a command that says nothing sound its execution tells what is wrong."""
    try:
        return batch_of(command) if command.verb == REPLAY else None
    except InvalidInput:
        return None


def schedule_of(command: Command) -> str | None:
    """The schedule that a command is about; None: it names none that could be one."""
    id_ = command.schedule_id or (command.spec.id if command.spec is not None else None)
    return id_ if id_ is not None and legal(id_) else None


def resolved(command: Command, log_time: int) -> Command:
    """The command with an absolute due time."""
    if command.delay_ms is not None and command.delay_ms >= 0 and command.due_at is None:
        due_at = min(log_time + command.delay_ms, LATEST + 1)  # beyond it is refused, whatever it says
        return replace(command, due_at=due_at, delay_ms=None)
    if bare(command).verb == CREATE and command.due_at is None and command.delay_ms is None:
        return replace(command, due_at=log_time)
    return command


def _is_answer(told: bytes) -> bool:
    """A tombstone that somebody else wrote may hold anything; one of a command that was moved holds nothing."""
    try:
        codec.EVENT.decode(told)
    except Undecodable:
        return False
    return True


def _moved(record: Record) -> bool:
    return any(name == MOVED for name, _ in headers_of(record))
