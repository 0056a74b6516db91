"""`dueline backup`, `restore` and `release`: an installation on disk, and back (docs/backup.md)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from pipeline import __version__, tell_dev_store
from pipeline.backup.manifest import Manifest
from pipeline.backup.restore import Restored
from pipeline.backup.take import OPEN_RUNS, PENDING, UNREADABLE, Source
from pipeline.cli.output import emit, note
from pipeline.cli.store import Store, following
from pipeline.config import Settings, load_settings
from pipeline.core.backup import Hold, HoldState
from pipeline.core.errors import Refused
from pipeline.follower import fold_due, shown_instant
from pipeline.heartbeat import in_words

OVERDUE_LIMIT = 1_000
"""Overdue runs that a release lets go without being asked twice."""


@click.command("backup", short_help="Write all that is still owed to a directory, while it runs.")
@click.argument("directory", type=click.Path(path_type=Path))
def backup(directory: Path) -> None:
    """Write a backup to DIRECTORY, which must not exist; directories above it are made. In it are pending jobs, keys,
    schedules, commands not executed yet, runs that have not ended, the layout and the era.

    Dispatchers and workers go on meanwhile. The directory has its name once everything is on the disk; until then, and
    if anything goes wrong, there is nothing of that name. What ended is not in it: no results, no dead letters.
    """
    from pipeline.adapters.scratch import rocks_scratch
    from pipeline.backup.take import take_backup

    settings = load_settings()
    with following() as store, _source(settings, store) as source:
        manifest = take_backup(source, directory, rocks_scratch)
    emit(manifest.to_json() | {"path": str(directory)}, lambda _: _written(directory, manifest))


@contextmanager
def _source(settings: Settings, store: Store) -> Iterator[Source]:
    from pipeline.adapters.kafka_admin import load_era
    from pipeline.adapters.kafka_cut import KafkaPositions

    with closing(KafkaPositions(settings.require_bootstrap(), settings.kafka)) as positions:
        yield Source(
            reader=store.parts.reader,
            positions=positions,
            clock=store.parts.clock,
            names=store.parts.names,
            layout=store.layout,
            era=load_era(settings),
            id=secrets.token_hex(6),
            product_version=__version__,
        )


@click.command("restore", short_help="Restore a backup into empty topics; nothing fires yet.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def restore(directory: Path) -> None:
    """Restore the backup in DIRECTORY into topics that hold nothing, or that are not there yet.

    Every checksum is looked at before anything is written. A new era begins, and the dispatch is held until `dueline
    release`; dispatchers and workers may be started before that. A restore that was cut off goes on when it is run
    again. Stop all dispatchers and workers first: one that runs is named, and one that was killed is waited for until
    it counts as gone, five seconds after its last heartbeat.
    """
    from pipeline.adapters.kafka_restore import KafkaTarget
    from pipeline.backup import restore as restoring

    settings = load_settings()
    tell_dev_store(settings)
    with closing(KafkaTarget(settings)) as target:
        done = restoring.restore(directory, target, settings.names, note)
    emit(_restored_view(directory, done), lambda _: _restored(done))
    note(
        "nothing fires yet: start dispatchers and workers, look at `dueline status`, then run `dueline release`"
    )


@click.command("release", short_help="Let what was restored fire.")
@click.option("--yes", is_flag=True, help=f"Also if more than {OVERDUE_LIMIT} runs are overdue.")
def release(yes: bool) -> None:
    """End the hold that a restore left: dispatchers begin to fire within a second or two.

    What is overdue by now fires at once; of a schedule its misfire policy says how much. Exits 4 if that is more than
    1,000 runs, unless it is confirmed with --yes: set DUELINE_CATCHUP_RATE for the dispatchers if it should go slower.
    """
    settings = load_settings()
    with following() as store:
        hold = store.follower.hold()
        if hold is None:
            note("nothing is held")
            emit({"outcome": "not_held", "backup": None, "overdue": 0, "pending": 0}, lambda _: "")
            return
        _check_ready(hold, store)
        overdue, pending = _backlog(store)
    if overdue > OVERDUE_LIMIT and not yes:
        raise Refused(
            f"{overdue} of {pending} runs are overdue and would fire at once: release them with --yes, or set"
            " DUELINE_CATCHUP_RATE for the dispatchers first"
        )
    _lift(settings, hold)
    data = {"outcome": "released", "backup": hold.id, "overdue": overdue, "pending": pending}
    emit(
        data, lambda _: f"backup {hold.id} is released: {overdue} of {pending} runs are overdue and fire now"
    )


def _check_ready(hold: Hold, store: Store) -> None:
    """Refused if not all is there, or if a process would go on with tokens of the era before."""
    if hold.state is HoldState.RESTORING:
        raise Refused(
            f"the restore of backup {hold.id} is not finished: run the same `dueline restore` again"
        )
    now = store.parts.clock.now()
    old = [seen for seen in store.follower.processes(now) if seen.heartbeat.started_at < hold.at]
    if old:
        raise Refused(f"{in_words(old)} started before the restore, in the era before: restart first")


def _backlog(store: Store) -> tuple[int, int]:
    """(overdue, pending), of jobs and retries."""
    now, names = store.parts.clock.now(), store.parts.names
    overdue = pending = 0
    for number in range(store.layout.partitions):
        due = fold_due(store.parts.reader.read(names.jobs, number))
        overdue += sum(at <= now for at in due.values())
        pending += len(due)
    return overdue, pending


def _lift(settings: Settings, hold: Hold) -> None:
    from pipeline.adapters.kafka_admin import topic_admin
    from pipeline.adapters.kafka_hold import lift

    lift(topic_admin(settings).meta, hold.id)


# -- answers ------------------------------------------------------------------------------------------------


def _written(directory: Path, manifest: Manifest) -> str:
    size = sum(each.bytes for each in manifest.files)
    return f"backup {manifest.id} in {directory}, {size} bytes: {_counted(manifest.counts)}"


def _counted(counts: Mapping[str, int]) -> str:
    """In words for a person: what is to come, always; what else is owed, if there is any."""
    pending = counts.get(PENDING, counts["jobs"] + counts["changed"])  # version 0.1.0 did not count it
    told = [
        _number(pending, "pending job", "pending jobs"),
        _number(counts["retries"], "retry", "retries"),
        _number(counts["schedules"], "schedule", "schedules"),
        _number(counts[OPEN_RUNS], "open run", "open runs"),
    ]
    if waiting := counts["commands"]:
        told.append(_number(waiting, "command", "commands") + " not executed yet")
    if unreadable := counts[UNREADABLE]:
        told.append(_number(unreadable, "unreadable run", "unreadable runs") + " left out")
    return ", ".join(told)


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _restored_view(directory: Path, done: Restored) -> dict[str, Any]:
    return {
        "id": done.manifest.id,
        "path": str(directory),
        "state": str(done.hold.state),
        "era": done.hold.era,
        "since": shown_instant(done.hold.at),
        "created_at": shown_instant(done.manifest.created_at),
        "created": list(done.created),
        "resumed": done.resumed,
        "records": done.records,
        "open_runs": done.manifest.counts[OPEN_RUNS],
        "counts": dict(done.manifest.counts),
    }


def _restored(done: Restored) -> str:
    return (
        f"backup {done.manifest.id} of {shown_instant(done.manifest.created_at)} is restored as era {done.hold.era}:"
        f" {_counted(done.manifest.counts)}"
    )
