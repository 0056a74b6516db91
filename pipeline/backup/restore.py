"""Restoring a backup into topics that hold nothing yet, under a new era, with the dispatch held.

    checksums ─▶ is the target fit? ─▶ topics ─▶ era + 1, hold "restoring" ─▶ still empty? ─▶ records ─▶ hold "held"

**Who runs is waited for, not guessed.** Who was killed a moment ago left a heartbeat that counts for five seconds. Who
lives beats again meanwhile, and is named; who does not counts as gone then, and the restore goes on.

**One may be killed at any place.** `meta` says `restoring` and which backup until all is there, and what is written is
the same whatever stands there already: a record is known by its key, so the same restore, begun again, writes
everything once more and changes nothing.

**Nobody dispatches meanwhile.** A dispatcher asks for the hold *after* its takeover record is in the log, and before it
settles anything; here the hold is readable *before* the topics are looked at. So either that record is found, and the
restore is refused, or that dispatcher finds the hold.

**Tokens grow.** The era is one more than that of the backup, and than that of the target if it has one; it stands first
in a token. What is run once more keeps its idempotency key.

**Replays** that were open count as cancelled, since they began in another era (`replay.register`): how far they are is
told in offsets of topics that are gone.

**What tells a restored record from a new one**, for whoever looks for what should be there (`verify`, `outage`):

- on `jobs`, the header `moved` = `restored`. An open run stands there as a retry, so its run 1 and all before the next
  one are on no topic of this store, and neither are acks of before;
- on `meta`, `restored/<era>`: an Event of kind `restore`, for good. `id` = the backup, `at` = when the restore began by
  the store's clock; `detail` has `era`, and `created_at` = when the loss window began, both instants in epoch ms. Every
  record that was restored was appended after `at`, and what it tells of happened before `created_at`, or soon after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pipeline import codec
from pipeline.backup import files
from pipeline.backup.manifest import FILES, Manifest
from pipeline.backup.records import Plain, headers
from pipeline.core import history, keys
from pipeline.core.backup import Hold, HoldState
from pipeline.core.errors import InvalidInput, Refused, Undecodable
from pipeline.core.job import Event, Run
from pipeline.core.keys import ERA_KEY, LAYOUT_KEY
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.token import LAST_ERA
from pipeline.emission import MOVED
from pipeline.heartbeat import Seen
from pipeline.ports import Headers, Put

META_FILE, JOBS_FILE, RUNS_FILE = FILES
RESTORED: Headers = [(MOVED, b"restored")]
"""As an owner that puts a record at its home: it did not come late from its maker, so its age does not speak against
it (`fold.CREATION_LIMIT_MS`)."""
NAMED = 5
"""Processes that a message names."""
AT_ONCE, BYTES_AT_ONCE = 10_000, 32 * 1024 * 1024
"""Records, and bytes of their values, on their way at the same time, which bounds the memory."""
FRESH_MS = 5_000
"""After so long without a heartbeat a process counts as gone."""


class Target(Protocol):
    """The store that is restored into. Every call may raise StoreUnreachable."""

    def layout(self) -> Layout | None: ...
    def hold(self) -> Hold | None: ...
    def beating(self, within_ms: int) -> Sequence[Seen]:
        """The last heartbeat of every process that beat within this time and has not left."""
        ...

    def pause(self) -> None:
        """Wait for less than it takes a live process to beat again."""
        ...

    def occupied(self, layout: Layout) -> str:
        """What is there that a restore would mix with, in words; empty if there is nothing."""
        ...

    def create(self, layout: Layout) -> Sequence[str]:
        """Create the topics that are missing; their names. Refused if others do not fit."""
        ...

    def begin(self, id: str, era: int) -> Hold:
        """Write the hold of this backup and an era that is no less than `era`, and return once it can be read; or what
        was begun before. Refused if there is the hold of another one."""
        ...

    def abandon(self, id: str) -> None:
        """Take the hold back."""
        ...

    def append(self, put: Put) -> None: ...
    def flush(self) -> None:
        """Wait until all that was appended is durable."""
        ...

    def finish(self, id: str) -> Hold:
        """All is there: from now on it is held."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore did. `resumed`: an earlier one of the same backup had begun."""

    manifest: Manifest
    hold: Hold
    created: tuple[str, ...]
    resumed: bool
    records: int


def restore(
    source: Path, target: Target, names: Names, tell: Callable[[str], None] = lambda words: None
) -> Restored:
    """Raises InvalidInput naming the file that is damaged, and Refused, with nothing written; StoreUnreachable, after
    which the same restore goes on. `tell` is told what is waited for."""
    manifest, layout = checked(source)
    resumed = _check_target(target, layout, manifest, tell)
    if not resumed:
        _refuse_occupied(target, layout)
    created = target.create(layout)
    hold = target.begin(manifest.id, manifest.era + 1)
    if not resumed:
        try:
            _refuse_occupied(target, layout)
        except Refused:
            target.abandon(manifest.id)
            raise
    target.append(mark_put(manifest, hold, names))
    records = _write(source, manifest, target, layout, names)
    return Restored(
        manifest=manifest,
        hold=target.finish(manifest.id),
        created=tuple(created),
        resumed=resumed,
        records=records,
    )


def checked(source: Path) -> tuple[Manifest, Layout]:
    """What is in a backup that is whole, and the layout that its topics must have. InvalidInput, Refused."""
    manifest = files.check(source)
    if manifest.era >= LAST_ERA:
        raise Refused(f"era {manifest.era} of the backup is the last that fits a token")
    return manifest, layout_of(source, manifest)


def _write(source: Path, manifest: Manifest, target: Target, layout: Layout, names: Names) -> int:
    count = since = size = 0
    for count, put in enumerate(puts_of(source, manifest, layout, names), start=1):
        target.append(put)
        size += len(put.value or b"")
        if count - since >= AT_ONCE or size >= BYTES_AT_ONCE:
            target.flush()
            since, size = count, 0
    target.flush()
    return count


# -- whether it may be --------------------------------------------------------------------------------------


def _check_target(target: Target, layout: Layout, manifest: Manifest, tell: Callable[[str], None]) -> bool:
    """Whether a restore of this backup has begun there. Refused if it may not be restored there."""
    found = target.layout()
    if found is None:
        return False
    if differing := layout.differences(found):
        raise Refused(
            f"layout mismatch: {'; '.join(differing)} (here: the backup). Ids name their partitions for life: restore"
            " under another DUELINE_PREFIX, or delete the topics first"
        )
    hold = target.hold()
    if hold is not None:
        _check_hold(hold, manifest)
    # Whoever started under the hold knows it; whoever was there before may own a partition and not have looked.
    _await_nobody(target, None if hold is None else hold.at, tell)
    return hold is not None


def _await_nobody(target: Target, before: int | None, tell: Callable[[str], None]) -> None:
    """Wait until no process counts as running, of those that started before this instant. Refused, naming them, if one
    of them lives: whoever was killed does not beat again, so this takes no longer than it takes to count as gone."""
    first: dict[str, int] | None = None
    while there := [
        seen for seen in target.beating(FRESH_MS) if before is None or seen.heartbeat.started_at < before
    ]:
        if first is None:
            first = {seen.heartbeat.process: seen.at for seen in there}
            tell(
                f"waiting for {_named(there)} to beat again, or to count as gone {FRESH_MS // 1000} s after the last"
                " time"
            )
        elif alive := [seen for seen in there if seen.at > first.get(seen.heartbeat.process, -1)]:
            raise Refused(f"nothing was changed, there runs {_named(alive)}: stop before a restore")
        target.pause()


def _named(processes: Sequence[Seen]) -> str:
    """By role, name, host and process number: what it takes to end them."""
    beats = {seen.heartbeat.process: seen.heartbeat for seen in processes}  # a worker beats once a queue
    told = [f"{beat.role} {name} (process {beat.pid} on {beat.host})" for name, beat in sorted(beats.items())]
    more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
    return ", ".join(told[:NAMED]) + more


def _check_hold(hold: Hold, manifest: Manifest) -> None:
    """Refused unless it is of an earlier try of this restore."""
    if hold.id != manifest.id:
        raise Refused(
            f"backup {hold.id} was restored here and is {hold.state}: finish that, or delete the topics first"
        )
    if hold.state is HoldState.HELD:
        raise Refused(f"backup {hold.id} is restored already: run `dueline release`")


def _refuse_occupied(target: Target, layout: Layout) -> None:
    if found := target.occupied(layout):
        raise Refused(
            f"{found}: a backup is restored into empty topics only. Delete the topics first, or use another"
            " DUELINE_PREFIX"
        )


# -- what is written ----------------------------------------------------------------------------------------


def layout_of(source: Path, manifest: Manifest) -> Layout:
    """The layout in the backup, with the schemas that this version writes. InvalidInput if there is none."""
    found = next((r for r in _records(source, manifest, META_FILE) if r["key"] == LAYOUT_KEY), None)
    if found is None:
        raise InvalidInput(str(source / META_FILE), "holds no layout")
    layout = codec.LAYOUT.decode(found["value"])
    return replace(layout, fingerprints=tuple(sorted({*layout.fingerprints, *codec.fingerprints()})))


def _records(source: Path, manifest: Manifest, name: str) -> Iterator[Plain]:
    (note,) = (each for each in manifest.files if each.name == name)
    return files.read(source, note)


def puts_of(source: Path, manifest: Manifest, layout: Layout, names: Names) -> Iterator[Put]:
    """Every record to write, in order."""
    for record in _records(source, manifest, META_FILE):
        if record["key"] not in (LAYOUT_KEY, ERA_KEY):
            yield Put(names.meta, record["partition"], record["key"], record["value"], headers(record))
    for record in _records(source, manifest, JOBS_FILE):
        yield job_put(record, names)
    for record in _records(source, manifest, RUNS_FILE):
        yield run_put(record, layout, names)


def mark_put(manifest: Manifest, hold: Hold, names: Names) -> Put:
    """The record that tells of the restore for good: its hold ends with the release (see the module)."""
    event = Event(
        id=manifest.id,
        kind="restore",
        at=hold.at,
        detail={"era": str(hold.era), "created_at": str(manifest.created_at)},
    )
    return Put(names.meta, 0, keys.restored_key(hold.era), codec.EVENT.encode(event))


def job_put(record: Plain, names: Names) -> Put:
    """A record of `jobs` where it stood: its home is fixed by its id."""
    told = [each for each in headers(record) if each not in RESTORED]  # it may have been restored before
    return Put(names.jobs, record["partition"], record["key"], record["value"], [*told, *RESTORED])


def run_put(record: Plain, layout: Layout, names: Names) -> Put:
    """An open run as a retry: its owner emits the next run of the occurrence, due when this one was."""
    try:
        run = codec.RUN.decode(record["value"])
        home = layout.home(run.job_id)
    except Undecodable as error:
        raise InvalidInput(RUNS_FILE, f"run of {record['key']!r:.80}: {error}") from error
    key, value = keys.retry_key(run.occurrence_id, run.run), codec.RUN.encode(again(run, record))
    return Put(names.jobs, home, key, value, RESTORED)


def again(run: Run, record: Plain) -> Run:
    """The next run: the same idempotency key, and as many failures. Starts may have had an effect, so they are told as
    lost attempts."""
    lost = history.lost(run.run, record["starts"] + 1, record["at"]) if record["starts"] else []
    return replace(run, run=run.run + 1, history=(*run.history, *lost))
