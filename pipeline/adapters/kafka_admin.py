"""An installation as a whole: topics made, compared with the plan, mended; the layout read (DESIGN §3)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import groupby
from operator import attrgetter

from pipeline import codec
from pipeline.adapters.kafka_meta import EraBump, Meta
from pipeline.adapters.kafka_topics import TopicAdmin
from pipeline.config import Settings
from pipeline.core.errors import Refused
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.topics import (
    FULL_REPLICATION,
    PARTITIONS,
    Finding,
    Repair,
    TopicPlan,
    Wish,
    differences,
    meta_plan,
    partition_differences,
    plan,
    refuse_mismatch,
    settle,
    warnings,
)

__all__ = [
    "EraBump",
    "Report",
    "TopicAdmin",
    "bump_era",
    "check",
    "ensure_topics",
    "lay_out",
    "load_era",
    "load_layout",
    "preview",
    "topic_admin",
    "upgrade",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `topics create` or `upgrade` did. `findings` is what still differs."""

    layout: Layout
    topics: tuple[TopicPlan, ...]
    created: tuple[str, ...]
    changed: tuple[Finding, ...] = ()
    announced: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()


def topic_admin(settings: Settings) -> TopicAdmin:
    """For the store of these settings. Raises StoreUnreachable if there is none."""
    return TopicAdmin(settings.client_config(), settings.names, timeout_ms=settings.store_timeout_ms)


def ensure_topics(settings: Settings, *, wish: Wish | None = None) -> Report:
    """Create what is missing of the installation, with its layout and first era; leave the rest as it is.

    No wish: the queue of the settings. The layout is written before the topics that it decides about, by one
    writer at a time, so two at once agree. Raises Refused with the exact difference if the wish or a topic
    that exists does not fit the layout; StoreUnreachable.
    """
    return _ensure(topic_admin(settings), settings.names, wish or Wish(queues={settings.queue: None}))


def _ensure(admin: TopicAdmin, names: Names, wish: Wish) -> Report:
    brokers = admin.brokers()
    created = admin.create([meta_plan(names, brokers)])
    stored = admin.meta.read()
    first = replace(wish, fingerprints=codec.fingerprints(), product_version=version("dueline"))
    layout = settle(stored.layout, wish) if stored.layout else settle(None, first)
    findings = _compare(admin, plan(names, layout, brokers))  # refuses before the layout is written for good
    if layout != stored.layout or stored.era is None:
        layout = admin.meta.update(lambda found: settle(found, wish) if found else layout)
    topics = plan(names, layout, brokers)
    created += admin.create(topics)
    return Report(
        layout=layout,
        topics=tuple(topics),
        created=tuple(created),
        findings=tuple(finding for finding in findings if finding.live is not None),
        warnings=tuple(warnings(brokers)),
    )


def lay_out(settings: Settings, layout: Layout) -> list[str]:
    """Create what is missing of an installation with this very layout, and its first era; the topics that were created.
    Raises as `ensure_topics`."""
    admin, names = topic_admin(settings), settings.names
    brokers = admin.brokers()
    created = admin.create([meta_plan(names, brokers)])
    plans = plan(names, layout, brokers)
    _compare(admin, plans)  # refuses before the layout is written for good

    def fitting(found: Layout | None) -> Layout:
        if found is not None and (differing := layout.differences(found)):
            raise Refused(f"layout mismatch: {'; '.join(differing)}")
        return layout

    admin.meta.update(fitting)
    return created + admin.create(plans)


def upgrade(settings: Settings, *, wish: Wish | None = None) -> Report:
    """Add what is missing, set what differs, announce the schemas of this version (DESIGN §3)."""
    admin, names = topic_admin(settings), settings.names
    before = _required(admin.meta_if_present(), names)
    wish = replace(wish or Wish(), fingerprints=codec.fingerprints(), product_version=version("dueline"))
    done = _ensure(admin, names, wish)
    by_topic = {topic.name: topic for topic in done.topics}
    mendable = _mendable(done.findings)
    for name, findings in groupby(mendable, key=attrgetter("topic")):
        _mend(admin, by_topic[name], list(findings))
    return replace(
        done,
        changed=tuple(mendable),
        announced=tuple(sorted({*done.layout.fingerprints} - {*before.fingerprints})),
        findings=tuple(_settled(admin, done.topics, settings.store_timeout_ms)),
    )


def _mendable(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.repair is Repair.UPGRADE]


def _settled(admin: TopicAdmin, plans: Sequence[TopicPlan], timeout_ms: int) -> list[Finding]:
    """What still differs once the brokers have learnt what the controller took: each does so by itself."""
    deadline = time.monotonic() + timeout_ms / 1000
    while _mendable(findings := _compare(admin, plans)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return findings


def _mend(admin: TopicAdmin, topic: TopicPlan, findings: list[Finding]) -> None:
    if any(finding.setting == PARTITIONS for finding in findings):
        admin.grow(topic.name, topic.partitions)
    settings = {f.setting: f.planned for f in findings if f.setting != PARTITIONS}
    if settings:
        admin.alter(topic.name, settings)


def check(settings: Settings, *, wish: Wish | None = None) -> tuple[Layout, list[Finding]]:
    """The layout, and every difference between the plan and the cluster. Raises Refused with the exact
    difference if the layout does not fit the wish or the topics; StoreUnreachable."""
    admin, names = topic_admin(settings), settings.names
    layout = _required(admin.meta_if_present(), names)
    wanted = settle(layout, wish or Wish())
    return layout, _compare(admin, plan(names, wanted, admin.brokers()))


def preview(settings: Settings, *, wish: Wish | None = None) -> Report:
    """What `ensure_topics` or `upgrade` would do, with nothing done: `findings` is what is not as planned.
    Without a store a cluster of three brokers is assumed. Raises as `ensure_topics` does."""
    names, wish = settings.names, wish or Wish(queues={settings.queue: None})
    if settings.source("bootstrap_servers") == "default":
        layout, brokers = settle(None, wish), FULL_REPLICATION
        topics = plan(names, layout, brokers)
        findings = [finding for topic in topics for finding in differences(topic, None)]
    else:
        admin = topic_admin(settings)
        layout, brokers = settle(admin.meta_if_present().layout, wish), admin.brokers()
        topics = plan(names, layout, brokers)
        findings = _compare(admin, topics)
    return Report(
        layout=layout,
        topics=tuple(topics),
        created=(),
        findings=tuple(findings),
        warnings=tuple(warnings(brokers)),
    )


def load_layout(settings: Settings) -> Layout:
    """The layout of an installation whose topics are there with the partitions it says. Costs a few requests:
    keep the answer. Raises Refused if not, saying what to do; StoreUnreachable."""
    admin, names = topic_admin(settings), settings.names
    layout = _required(admin.meta_expected(), names)
    plans = plan(names, layout, brokers=1)
    shapes = admin.shapes_expected([topic.name for topic in plans])
    missing = [topic.name for topic in plans if topic.name not in shapes]
    if missing:
        raise Refused(f"topics are missing ({', '.join(missing)}): run `dueline topics create`")
    refuse_mismatch(
        [
            finding
            for topic in plans
            for finding in partition_differences(topic, shapes[topic.name].partitions)
        ]
    )
    return layout


def load_era(settings: Settings) -> int:
    """The era of the installation, the leading part of every token. Raises Refused, StoreUnreachable."""
    admin = topic_admin(settings)
    meta = admin.meta_expected()
    _required(meta, settings.names)
    if meta.era is None:
        raise Refused(f"{settings.names.meta} holds no era: run `dueline topics create`")
    return meta.era


def bump_era(settings: Settings) -> EraBump:
    """Begin a new era and forget the guards of all groups (H20). Processes that run keep the old one until they
    are started again. Raises Refused past the last era or without an installation; StoreUnreachable."""
    admin = topic_admin(settings)
    _required(admin.meta_if_present(), settings.names)
    return admin.meta.bump_era()


def _required(meta: Meta, names: Names) -> Layout:
    if meta.layout is None:
        raise Refused(f"{names.meta} holds no layout: run `dueline topics create`")
    return meta.layout


def _compare(admin: TopicAdmin, plans: Sequence[TopicPlan]) -> list[Finding]:
    """Raises Refused if partitions do not fit."""
    live = admin.live(topic.name for topic in plans)
    findings = [finding for topic in plans for finding in differences(topic, live.get(topic.name))]
    refuse_mismatch(findings)
    return findings
