from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.layout import Layout, default_layout
from pipeline.core.names import Names
from pipeline.core.topics import (
    MOST_PARTITIONS,
    Finding,
    LiveTopic,
    Repair,
    TopicPlan,
    Wish,
    differences,
    in_sync_of,
    meta_plan,
    partition_differences,
    plan,
    refuse_mismatch,
    replication_of,
    settle,
    warnings,
)

NAMES = Names("t")
LAYOUT = default_layout(queues={"default": 12, "mail": 3})
DAY_MS = 86_400_000
MIB = 1024 * 1024


def planned(brokers: int = 3, layout: Layout = LAYOUT) -> dict[str, TopicPlan]:
    return {topic.name: topic for topic in plan(NAMES, layout, brokers)}


def as_planned(topic: TopicPlan) -> LiveTopic:
    return LiveTopic(
        name=topic.name,
        partitions=topic.partitions,
        replication=topic.replication,
        settings={**topic.settings, "flush.ms": "9223372036854775807"},
    )


# -- the plan ------------------------------------------------------------------------------------------------


def test_the_topics_and_partitions_of_an_installation() -> None:
    assert {name: topic.partitions for name, topic in planned().items()} == {
        "t.meta": 1,
        "t.jobs": 24,
        "t.events": 24,
        "t.dead": 24,
        "t.fleet": 3,
        "t.work.default": 12,
        "t.acks.default": 12,
        "t.work.mail": 3,
        "t.acks.mail": 3,
    }


def test_meta_comes_first_and_does_not_depend_on_the_layout() -> None:
    assert plan(NAMES, LAYOUT, 3)[0] == meta_plan(NAMES, 3)


@pytest.mark.parametrize("name", planned())
def test_h30_h32_what_every_topic_has(name: str) -> None:
    settings = planned()[name].settings
    assert settings["message.timestamp.type"] == "LogAppendTime"
    assert settings["unclean.leader.election.enable"] == "false"
    assert settings["compression.type"] == "producer"
    assert settings["min.insync.replicas"] == "2"
    assert planned()[name].replication == 3


@pytest.mark.parametrize(
    ("name", "policy", "retention", "message_mib"),
    [
        ("t.jobs", "compact", None, 2),
        ("t.meta", "compact", None, 2),
        ("t.work.default", "delete", 30, 2),
        ("t.acks.default", "compact,delete", 30, 4),
        ("t.dead", "delete", 90, 4),
        ("t.events", "delete", 30, 2),
        ("t.fleet", "delete", 1 / 24, 2),
    ],
)
def test_h21_what_is_kept_and_how_long(
    name: str, policy: str, retention: float | None, message_mib: int
) -> None:
    settings = planned()[name].settings
    assert settings["cleanup.policy"] == policy
    assert settings["max.message.bytes"] == str(message_mib * MIB)
    assert settings.get("retention.ms") == (None if retention is None else str(int(retention * DAY_MS)))
    assert settings.get("retention.bytes") == (None if retention is None else "-1")
    compacted = "compact" in policy
    assert settings.get("delete.retention.ms") == (str(7 * DAY_MS) if compacted else None)
    assert settings.get("min.compaction.lag.ms") == (str(DAY_MS) if compacted else None)
    assert int(settings["segment.ms"]) <= (6 * 3_600_000 if compacted else DAY_MS)


@pytest.mark.parametrize(("brokers", "replication", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (9, 3, 2)])
def test_h32_copies_follow_the_number_of_brokers(brokers: int, replication: int, in_sync: int) -> None:
    assert replication_of(brokers) == replication
    assert in_sync_of(replication) == in_sync
    for topic in plan(NAMES, LAYOUT, brokers):
        assert topic.replication == replication
        assert topic.settings["min.insync.replicas"] == str(in_sync)


def test_too_few_brokers_are_warned_about() -> None:
    assert list(warnings(3)) == []
    assert list(warnings(2)) == [
        "replication factor 2 instead of 3, for want of brokers (2): a lost disk may lose jobs"
    ]


@given(st.integers(1, 50))
def test_one_restart_never_stops_writes_and_every_broker_leads_a_fleet_partition(brokers: int) -> None:
    topics = planned(brokers)
    assert topics["t.fleet"].partitions >= brokers
    for topic in topics.values():
        assert int(topic.settings["min.insync.replicas"]) <= max(1, topic.replication - 1)


# -- differences ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", planned())
def test_a_topic_as_planned_has_no_difference(name: str) -> None:
    assert list(differences(planned()[name], as_planned(planned()[name]))) == []


def test_a_missing_topic_is_one_finding() -> None:
    (finding,) = differences(planned()["t.jobs"], None)
    assert (finding.live, finding.repair) == (None, Repair.UPGRADE)
    assert str(finding) == "t.jobs: topic is missing, planned to exist"


def every_setting() -> list[tuple[str, str]]:
    return [(topic.name, setting) for topic in plan(NAMES, LAYOUT, 3) for setting in topic.settings]


@pytest.mark.parametrize(("name", "setting"), every_setting())
def test_h32_every_setting_is_compared(name: str, setting: str) -> None:
    topic = planned()[name]
    live = as_planned(topic)
    (wrong,) = differences(topic, replace(live, settings={**live.settings, setting: "other"}))
    assert wrong == Finding(
        topic=name, setting=setting, live="other", planned=topic.settings[setting], repair=Repair.UPGRADE
    )
    without = {key: value for key, value in live.settings.items() if key != setting}
    (missing,) = differences(topic, replace(live, settings=without))
    assert missing.live is None


def test_the_order_of_a_list_does_not_matter() -> None:
    topic = planned()["t.acks.mail"]
    live = as_planned(topic)
    settings = {**live.settings, "cleanup.policy": "delete, compact"}
    assert list(differences(topic, replace(live, settings=settings))) == []


def test_a_single_copy_is_not_asked_for_two_in_sync() -> None:
    """A cluster that has grown: planned with three copies, the topic still has the one it was made with."""
    topic = planned(brokers=3)["t.jobs"]
    live = as_planned(planned(brokers=1)["t.jobs"])
    (finding,) = differences(topic, live)
    assert (finding.setting, finding.live, finding.planned) == ("replication factor", "1", "3")
    assert finding.repair is Repair.OPERATOR


def test_more_copies_than_planned_are_fine() -> None:
    topic = planned()["t.jobs"]
    assert list(differences(topic, replace(as_planned(topic), replication=5))) == []


@pytest.mark.parametrize("partitions", [23, 25])
def test_other_partitions_than_the_layout_says_are_refused_with_the_difference(partitions: int) -> None:
    topic = planned()["t.jobs"]
    findings = list(differences(topic, replace(as_planned(topic), partitions=partitions)))
    assert [finding.repair for finding in findings] == [Repair.NONE]
    with pytest.raises(Refused, match=f"t.jobs: partitions is {partitions}, planned 24"):
        refuse_mismatch(findings)


def test_what_can_be_mended_is_not_refused() -> None:
    refuse_mismatch(list(differences(planned()["t.jobs"], None)))
    refuse_mismatch([])


def test_fleet_may_have_more_partitions_and_grows_with_the_brokers() -> None:
    assert list(partition_differences(planned(brokers=3)["t.fleet"], 5)) == []
    (finding,) = partition_differences(planned(brokers=5)["t.fleet"], 3)
    assert (finding.live, finding.planned, finding.repair) == ("3", "5", Repair.UPGRADE)


# -- the layout ----------------------------------------------------------------------------------------------


def test_the_first_layout_is_the_default_one_with_what_was_wished() -> None:
    assert settle(None, Wish()) == default_layout()
    wish = Wish(
        shards=2,
        ring=3,
        bucket_width_ms=1000,
        queues={"a": None, "b": 5},
        fingerprints=("b" * 16, "a" * 16),
        product_version="1",
    )
    layout = settle(None, wish)
    assert (layout.partitions, layout.shards, layout.ring, layout.bucket_width_ms) == (6, 2, 3, 1000)
    assert layout.queues == {"a": 12, "b": 5}
    assert layout.fingerprints == ("a" * 16, "b" * 16)
    assert layout.product_version == "1"


def test_a_wish_for_nothing_changes_nothing() -> None:
    assert settle(LAYOUT, Wish()) == LAYOUT


def test_queues_and_fingerprints_are_added_and_never_removed() -> None:
    stored = replace(LAYOUT, fingerprints=("b" * 16,), product_version="1")
    wish = Wish(queues={"new": None, "mail": None, "sized": 7}, fingerprints=("a" * 16,), product_version="2")
    layout = settle(stored, wish)
    assert layout.queues == {"default": 12, "mail": 3, "new": 12, "sized": 7}
    assert layout.fingerprints == ("a" * 16, "b" * 16)
    assert layout.product_version == "2"
    assert layout.identity() == stored.identity()
    assert settle(layout, wish) == layout


def test_what_is_asked_as_it_is_is_granted() -> None:
    wish = Wish(shards=4, ring=6, bucket_width_ms=60_000, queues={"mail": 3})
    assert settle(LAYOUT, wish) == LAYOUT


def test_a_change_of_placement_is_refused_with_the_exact_difference() -> None:
    wish = Wish(shards=6, ring=4, bucket_width_ms=1000, queues={"mail": 4, "default": 12, "new": 1})
    with pytest.raises(Refused) as error:
        settle(LAYOUT, wish)
    assert str(error.value) == (
        "layout mismatch: shards is 4, asked for 6; ring is 6, asked for 4;"
        " bucket width is 60000, asked for 1000; queue mail is 3, asked for 4."
        " It is fixed for life: leave it, or use another prefix"
    )


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        (Wish(shards=MOST_PARTITIONS, ring=2), "shards"),
        (Wish(queues={"Mail": None}), "queue"),
        (Wish(queues={"mail": 0}), "queue"),
        (Wish(queues={"mail": MOST_PARTITIONS + 1}), "queue"),
        (Wish(bucket_width_ms=-1), "bucket_width_ms"),
        (Wish(shards=-1, ring=-1), "shards"),
    ],
)
def test_numbers_that_make_no_sense_are_invalid(wish: Wish, field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        settle(None, wish)
    assert error.value.field == field


@pytest.mark.parametrize("queues", [{"Mail": None}, {"new": 0}, {"new": MOST_PARTITIONS + 1}])
def test_a_new_queue_is_checked_too(queues: dict[str, int | None]) -> None:
    with pytest.raises(InvalidInput, match="queue"):
        settle(LAYOUT, Wish(queues=queues))


def test_the_most_work_partitions_a_queue_may_have() -> None:
    assert settle(LAYOUT, Wish(queues={"new": MOST_PARTITIONS})).queues["new"] == MOST_PARTITIONS
