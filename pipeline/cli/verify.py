"""`dueline verify`: whether what stands in the store keeps its promises, looked at from outside while it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.output import emit, table
from pipeline.cli.window import Scene, came_view, surveying, tell_newer
from pipeline.follower import shown_instant

if TYPE_CHECKING:
    from pipeline.core.site import Site
    from pipeline.survey.index_check import Comparison

HOUR_MS = 3_600_000


@click.command("verify")
@click.option(
    "--from", "from_", metavar="RFC3339", help="What was due then or later. Default: an hour before --to."
)
@click.option("--to", metavar="RFC3339", help="What was due before then. Default: now.")
@click.option("--no-index", is_flag=True, help="Do not compare indexes with the log, which reads all of it.")
def verify(from_: str | None, to: str | None, no_index: bool) -> int:
    """Look whether the store keeps its promises. Nothing is changed, and nothing need be stopped.

    \b
    Of every occurrence that was due in the window:
    lost      its home says that it fired, and there is no run 1
    doubled   there is more than one run 1
    early     a run was emitted before it was due
    unacked   its workers are past its last run, and nothing says how that ended
    token     a fencing token did not grow from one run to the next

    \b
    Of every partition whose dispatcher keeps its state on this machine:
    index     the index holds something else than the log says

    What is under way is no finding: pending, waiting and running ones, and what an owner has just written. Indexes of
    other machines are not looked at; run it there. Exit code 0 if nothing was found, else 1, with the first 20 ids.
    """
    from pipeline.survey import Filter

    with surveying(from_, to, Filter(), HOUR_MS) as scene:
        report = read_report(scene, index=not no_index)
        tell_newer(scene.ground)
    emit(report, _text)
    return 0 if report["ok"] else 1


def read_report(scene: Scene, *, index: bool) -> dict[str, Any]:
    """The JSON of `dueline verify` (schemas/cli/verify.json)."""
    from pipeline.survey.promises import Finding, Kind
    from pipeline.survey.verifying import verify_promises

    kept = replace(scene.window, from_ms=max(scene.window.from_ms, scene.gone_until or 0))
    verdict = verify_promises(scene.ground, kept, scene.origin.restored_at)
    compared = list(compare_indexes(scene)) if index else []
    for _, comparison in compared:
        for difference in comparison.differences:
            key = difference.record_key.decode("utf-8", "replace")
            detail = f"partition {comparison.partition}: {difference.detail}"
            verdict.add(Finding(Kind.INDEX, key, detail))
    verdict.counts[Kind.INDEX] = sum(comparison.differing for _, comparison in compared)
    checked = {comparison.partition for _, comparison in compared}
    return {
        "prefix": scene.ground.names.prefix,
        "at": shown_instant(scene.now),
        "from": shown_instant(scene.window.from_ms),
        "to": shown_instant(scene.window.to_ms),
        **came_view(scene),
        "ok": not verdict.counts.total(),
        "occurrences": verdict.pending + verdict.judged.occurrences,
        "pending": verdict.pending,
        "fired": verdict.judged.occurrences,
        "waiting": verdict.judged.waiting,
        "restored": verdict.judged.restored,
        "runs": verdict.judged.runs,
        "newer_records": scene.ground.newer.total(),
        "findings": [
            {
                "kind": kind.value,
                "count": verdict.counts[kind],
                "first": [{"id": f.id, "detail": f.detail} for f in verdict.first.get(kind, ())],
            }
            for kind in Kind
        ],
        "indexes": [index_view(slot, comparison) for slot, comparison in compared],
        "not_here": sorted({*range(scene.ground.layout.partitions)} - checked) if index else None,
    }


def index_view(slot: str, comparison: Comparison) -> dict[str, Any]:
    index, log = comparison.index, comparison.log
    return {
        "partition": comparison.partition,
        "slot": slot,
        "position": comparison.position,
        "in_motion": comparison.in_motion,
        "entries": sum(each.count for each in index.values()),
        "checksum": f"{sum(each.checksum for each in index.values()) % (1 << 64):016x}",
        "log_entries": sum(each.count for each in log.values()),
        "log_checksum": f"{sum(each.checksum for each in log.values()) % (1 << 64):016x}",
        "buckets": len(index.keys() | log.keys()),
        "unequal_buckets": len(comparison.unequal),
        "differing": comparison.differing,
    }


# -- indexes of this machine --------------------------------------------------------------------------------


def compare_indexes(scene: Scene) -> Iterator[tuple[str, Comparison]]:
    """Every partition of every index in our state directory, with the number of its slot."""
    from pipeline.adapters.rocks_index import RocksIndex
    from pipeline.adapters.rocks_look import RocksLook, indexes_in
    from pipeline.config import load_settings
    from pipeline.survey.index_check import compare, trusted

    settings = load_settings()
    paths = indexes_in(settings.state_dir)
    site = _site(scene) if paths else None
    for path in paths:
        assert site is not None
        for number in range(site.layout.partitions):
            # Anew for each: what its owner writes while the ones before are compared would all be in motion.
            with closing(RocksLook(path)) as index:
                position = index.position(number)
                if position is None or not trusted(position, site, scene.now):
                    continue
                with (
                    tempfile.TemporaryDirectory(prefix="dueline-verify-") as scratch,
                    closing(RocksIndex(Path(scratch) / "index")) as fresh,
                ):
                    scan = scene.ground.scan
                    yield path.parent.name, compare(number, index, fresh, position, site, scan, scene.now)


def _site(scene: Scene) -> Site:
    from pipeline.adapters.kafka_admin import load_layout, topic_admin
    from pipeline.config import load_settings
    from pipeline.core.site import Site
    from pipeline.core.topics import DELETE_RETENTION_MS

    settings = load_settings()
    admin, names = topic_admin(settings), scene.ground.names
    return Site(
        names=names,
        layout=scene.ground.layout,
        cluster_id=admin.cluster_id(),
        topic_id=admin.topic_id(names.jobs),
        stale_after_ms=DELETE_RETENTION_MS // 2,
        read_layout=lambda: load_layout(settings),
    )


# -- for people ---------------------------------------------------------------------------------------------


def _text(report: Mapping[str, Any]) -> str:
    found = [finding for finding in report["findings"] if finding["count"]]
    lines = [
        f"{report['prefix']} from {report['from']} to {report['to']}, as of {report['at']}:"
        f" {_counts(report)}",
        *_indexes(report),
    ]
    if not found:
        return "\n".join((*lines, "nothing is wrong"))
    rows = [(f["kind"], f["count"], each["id"], each["detail"]) for f in found for each in f["first"]]
    return "\n".join((*lines, table(("what", "of", "id", "detail"), rows)))


def _counts(report: Mapping[str, Any]) -> str:
    """What was due is what is pending and what has fired."""
    restored = f", {report['restored']} of them before a restore" if report["restored"] else ""
    return (
        f"{report['occurrences']} occurrences due: {report['pending']} pending, {report['fired']} fired in"
        f" {report['runs']} runs{restored}, {report['waiting']} of these waiting for a worker"
    )


def _indexes(report: Mapping[str, Any]) -> Iterator[str]:
    if report["not_here"] is None:
        yield "indexes were not compared"
        return
    views = report["indexes"]
    if views:
        entries = sum(view["entries"] for view in views)
        moving = sum(view["in_motion"] for view in views)
        yield (
            f"indexes of {len(views)} partitions compared with their logs: {entries} entries, {moving} in motion,"
            f" {sum(view['differing'] for view in views)} differ"
        )
    if report["not_here"]:
        yield f"no index on this machine of partitions {' '.join(map(str, report['not_here']))}"
