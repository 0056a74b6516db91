"""`dueline topics`: the topics of an installation, their settings, and the layout that all must agree on."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import click

from pipeline import tell_dev_store
from pipeline.adapters import kafka_admin
from pipeline.adapters.kafka_admin import Report
from pipeline.cli.output import emit, note, table
from pipeline.config import Settings, load_settings
from pipeline.core.errors import InvalidInput
from pipeline.core.layout import Layout
from pipeline.core.times import parse_duration
from pipeline.core.topics import PARTITIONS, Finding, Repair, TopicPlan, Wish

F = TypeVar("F", bound=Callable[..., Any])

DIFFERENCES_FOUND = 1


@click.group("topics")
def topics() -> None:
    """Create, check or upgrade the topics of an installation."""


def layout_options(command: F) -> F:
    """What a caller may ask of the layout."""
    for option in (
        click.option(
            "--bucket-width",
            metavar="D",
            help="Span of due times that stays on one partition of a shard, e.g. 60s; fixed once created.",
        ),
        click.option(
            "--ring",
            type=click.IntRange(min=1),
            help="Partitions of each shard of the jobs topic; fixed once created.",
        ),
        click.option(
            "--shards",
            type=click.IntRange(min=1),
            help="Shards of the jobs topic: it has SHARDS x RING partitions; fixed once created.",
        ),
        click.option(
            "--queue",
            "queues",
            multiple=True,
            metavar="Q[:PARTITIONS]",
            help="A queue to have; may be repeated.",
        ),
    ):
        command = option(command)
    return command


def print_option(command: F) -> F:
    text = "Change nothing: print the commands for whoever may; with --json the plan."
    return click.option("--print", "only_print", is_flag=True, help=text)(command)


@topics.command()
@layout_options
@print_option
def create(only_print: bool, **options: Any) -> None:
    """Create the topics that are missing, and at first the layout; leave the others as they are.

    With --print somebody else creates them; run `create` again afterwards, which then writes the layout only.
    """
    settings = _settings()
    wish = _wish(settings.queue, **options)
    if only_print:
        _print(settings, kafka_admin.preview(settings, wish=wish))
        return
    report = kafka_admin.ensure_topics(settings, wish=wish)
    _warn(report.warnings, report.findings)
    made = set(report.created)
    data = {
        "created": [topic.name for topic in report.topics if topic.name in made],
        "existing": [topic.name for topic in report.topics if topic.name not in made],
        "layout": _layout(report.layout),
        "findings": _findings(report.findings),
        "warnings": list(report.warnings),
    }
    emit(data, lambda _: _topic_table(report.topics, made))


@topics.command()
@layout_options
def check(**options: Any) -> int:
    """Compare the live settings with the plan, and the layout with the topics and with what is asked here.

    Exits 0 if all is as planned, 1 if something differs, 4 if the layout does not fit.
    """
    layout, findings = kafka_admin.check(_settings(), wish=_wish(None, **options))
    data = {"ok": not findings, "layout": _layout(layout), "findings": _findings(findings)}
    emit(data, lambda _: _finding_table(findings) if findings else "everything is as planned")
    if any(finding.repair is Repair.UPGRADE for finding in findings):
        note("run `dueline topics upgrade` to mend it")
    return DIFFERENCES_FOUND if findings else 0


@topics.command()
@layout_options
@print_option
def upgrade(only_print: bool, **options: Any) -> int:
    """Add what is missing, set what differs, and announce the schemas of this version.

    Upgrade before any process of the new version starts: announced schemas tell the older ones what they
    cannot read yet.
    """
    settings = _settings()
    wish = _wish(None, **options)
    if only_print:
        _print(settings, kafka_admin.preview(settings, wish=wish))
        return 0
    report = kafka_admin.upgrade(settings, wish=wish)
    _warn(report.warnings, report.findings)
    data = {
        "created": list(report.created),
        "changed": _findings(report.changed),
        "announced": list(report.announced),
        "layout": _layout(report.layout),
        "findings": _findings(report.findings),
        "warnings": list(report.warnings),
    }
    emit(data, lambda _: "\n".join(_changes(report)) or "nothing to change")
    return DIFFERENCES_FOUND if report.findings else 0


# -- options -------------------------------------------------------------------------------------------------


def _settings() -> Settings:
    settings = load_settings()
    tell_dev_store(settings)
    return settings


def _wish(
    default: str | None,
    *,
    queues: tuple[str, ...],
    shards: int | None,
    ring: int | None,
    bucket_width: str | None,
) -> Wish:
    """`default` is the queue that must be there beside those that are named."""
    named = ({default: None} if default else {}) | dict(_queue(text) for text in queues)
    width = None if bucket_width is None else parse_duration("--bucket-width", bucket_width)
    if width == 0:
        raise InvalidInput("--bucket-width", "0 is less than 1 ms")
    return Wish(shards=shards, ring=ring, bucket_width_ms=width, queues=named)


def _queue(text: str) -> tuple[str, int | None]:
    name, colon, count = text.partition(":")
    if colon and not (count.isascii() and count.isdecimal()):
        raise InvalidInput("--queue", f"{text!r} is not Q or Q:PARTITIONS")
    return name, int(count) if colon else None


# -- answers -------------------------------------------------------------------------------------------------


def _layout(layout: Layout) -> dict[str, Any]:
    return {
        **asdict(layout),
        "skew": list(layout.skew),
        "queues": dict(layout.queues),
        "fingerprints": list(layout.fingerprints),
    }


def _findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [asdict(finding) | {"repair": finding.repair.value} for finding in findings]


def _warn(warnings: Sequence[str], findings: Sequence[Finding]) -> None:
    for warning in warnings:
        note(f"warning: {warning}")
    for finding in findings:
        note(f"warning: {finding}")


def _topic_table(plans: Sequence[TopicPlan], made: set[str]) -> str:
    rows = [
        (topic.name, topic.partitions, topic.replication, "created" if topic.name in made else "existed")
        for topic in plans
    ]
    return table(("topic", "partitions", "replication", "state"), rows)


def _finding_table(findings: Sequence[Finding]) -> str:
    rows = [
        (finding.topic, finding.setting, finding.live or "missing", finding.planned, finding.repair.value)
        for finding in findings
    ]
    return table(("topic", "setting", "live", "planned", "mended by"), rows)


def _changes(report: Report) -> Iterator[str]:
    yield from (f"created {name}" for name in report.created)
    yield from (f"changed {finding}" for finding in report.changed)
    yield from (f"announced schema {fingerprint}" for fingerprint in report.announced)


# -- for clusters where somebody else creates topics ---------------------------------------------------------


def _print(settings: Settings, report: Report) -> None:
    _warn(report.warnings, [f for f in report.findings if f.repair is Repair.OPERATOR])
    servers = settings.bootstrap_servers or "$BOOTSTRAP_SERVERS"
    lines = list(_commands(report, f"--bootstrap-server {servers}"))
    data = {
        "layout": _layout(report.layout),
        "topics": [asdict(topic) for topic in report.topics],
        "findings": _findings(report.findings),
        "warnings": list(report.warnings),
        "commands": lines,
    }
    emit(data, lambda _: "\n".join(lines))


def _commands(report: Report, server: str) -> Iterator[str]:
    """What brings a cluster to the plan, in the words of Kafka's own tools."""
    plans = {topic.name: topic for topic in report.topics}
    for finding in report.findings:
        topic = f"--topic {finding.topic}"
        if finding.live is None and finding.setting == "topic":
            yield _create_command(plans[finding.topic], server)
        elif finding.setting == PARTITIONS:
            yield f"kafka-topics.sh {server} --alter {topic} --partitions {finding.planned}"
        elif finding.repair is Repair.UPGRADE:
            # Square brackets, since a comma would separate settings.
            value = shlex.quote(f"{finding.setting}=[{finding.planned}]")
            yield f"kafka-configs.sh {server} --alter {topic} --add-config {value}"


def _create_command(topic: TopicPlan, server: str) -> str:
    settings = " ".join(
        f"--config {shlex.quote(f'{name}={value}')}" for name, value in topic.settings.items()
    )
    return (
        f"kafka-topics.sh {server} --create --if-not-exists --topic {topic.name}"
        f" --partitions {topic.partitions} --replication-factor {topic.replication} {settings}"
    )
