"""Topics, copies, brokers and retention."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.doctor.healthy import BROKERS, HEALTHY, JOBS, MAIL, NAMES, NOW, SETTINGS, WORK, found, only, spoilt

from pipeline.core.backup import Hold, HoldState
from pipeline.core.queues import Pause, paused, resumed, unreadable
from pipeline.core.topics import DAY_MS, LiveTopic
from pipeline.doctor import Danger, Facts, Severity
from pipeline.doctor.facts import Copies, Place


def with_topic(name: str, **settings: str) -> Facts:
    """With these settings of a topic changed, underscores for dots."""
    changed = {key.replace("_", "."): value for key, value in settings.items()}
    topic = HEALTHY.topics[name]
    return spoilt(topics={**HEALTHY.topics, name: replace(topic, settings={**topic.settings, **changed})})


def with_brokers(**settings: str) -> Facts:
    changed = {key.replace("_", "."): value for key, value in settings.items()}
    return spoilt(broker_settings={broker: {**SETTINGS, **changed} for broker in BROKERS})


@pytest.mark.parametrize(
    ("name", "setting", "value", "severity", "danger"),
    [
        (JOBS, "message_timestamp_type", "CreateTime", Severity.ERROR, Danger.CLOCK),
        (JOBS, "cleanup_policy", "delete", Severity.ERROR, Danger.LOST),
        (JOBS, "unclean_leader_election_enable", "true", Severity.ERROR, Danger.LOST),
        (JOBS, "delete_retention_ms", "86400000", Severity.ERROR, Danger.ONCE),
        (JOBS, "delete_retention_ms", "999999999999", Severity.NOTE, Danger.ON_TIME),
        (JOBS, "min_insync_replicas", "1", Severity.ERROR, Danger.LOST),
        (JOBS, "min_insync_replicas", "3", Severity.WARNING, Danger.ON_TIME),
        (JOBS, "segment_ms", "1", Severity.NOTE, Danger.ON_TIME),
        (NAMES.dead, "retention_ms", "1000", Severity.ERROR, Danger.LOST),
        (NAMES.dead, "retention_ms", "-1", Severity.NOTE, Danger.ON_TIME),
        (WORK, "retention_bytes", "1000000", Severity.ERROR, Danger.LOST),
    ],
)
def test_a_setting_that_differs_is_weighed_by_what_it_endangers(
    name: str, setting: str, value: str, severity: Severity, danger: Danger
) -> None:
    told = only("settings", with_topic(name, **{setting: value}))
    assert (told.severity, told.danger, told.subject) == (severity, danger, name)
    assert f"{setting.replace('_', '.')} is {value}, planned " in told.problem
    assert told.remedy == "dueline topics upgrade"


def test_a_missing_topic_is_made_by_an_upgrade() -> None:
    topics = {name: topic for name, topic in HEALTHY.topics.items() if name != NAMES.dead}
    told = only("settings", spoilt(topics=topics))
    assert (told.severity, told.danger) == (Severity.ERROR, Danger.LOST)
    assert told.problem == "topic is missing, planned to exist"
    assert told.remedy == "dueline topics upgrade"


def test_copies_and_partitions_need_kafkas_own_tools() -> None:
    jobs = HEALTHY.topics[JOBS]
    fewer, stops = found("settings", spoilt(topics={**HEALTHY.topics, JOBS: replace(jobs, replication=2)}))
    assert (fewer.severity, fewer.danger) == (Severity.ERROR, Danger.LOST)
    assert fewer.problem == "replication factor is 2, planned 3"
    assert (stops.severity, stops.problem) == (Severity.WARNING, "min.insync.replicas is 2, planned 1")
    assert fewer.remedy.startswith("kafka-reassign-partitions.sh --bootstrap-server k:9092 ")
    grown = only("settings", spoilt(topics={**HEALTHY.topics, JOBS: replace(jobs, partitions=5)}))
    assert (grown.severity, grown.danger) == (Severity.ERROR, Danger.LOST)
    assert grown.problem == "partitions is 5, planned 4"
    assert f"--delete --topic {JOBS}, if it is empty" in grown.remedy


@pytest.mark.parametrize(
    ("state", "words", "remedy"),
    [
        (HoldState.HELD, "since 5 min: backup b1 was restored", "dueline release"),
        (HoldState.RESTORING, "since 5 min: backup b1 is being restored", "dueline restore again"),
    ],
)
def test_a_restore_that_was_not_released_is_told(state: HoldState, words: str, remedy: str) -> None:
    told = only("hold", spoilt(hold=Hold(id="b1", state=state, at=NOW - 300_000, era=2)))
    assert (told.severity, told.subject) == (Severity.WARNING, NAMES.meta)
    assert words in told.problem
    assert told.remedy.startswith(remedy)


# -- copies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copies", "severity", "problem"),
    [
        (Copies(leader=None, replicas=3, in_sync=0), Severity.ERROR, "partitions 1 have no leader"),
        (
            Copies(leader=1, replicas=3, in_sync=1),
            Severity.ERROR,
            "fewer copies in sync than min.insync.replicas",
        ),
        (
            Copies(leader=1, replicas=3, in_sync=2),
            Severity.WARNING,
            "partitions 1 have a copy that is not in sync",
        ),
    ],
)
def test_copies_that_are_away(copies: Copies, severity: Severity, problem: str) -> None:
    told = only("copies", spoilt(copies={**HEALTHY.copies, Place(JOBS, 1): copies}))
    assert (told.severity, told.subject) == (severity, JOBS)
    assert problem in told.problem
    assert "kafka-topics.sh --bootstrap-server k:9092 --describe" in told.remedy


def test_partitions_of_a_topic_are_told_together() -> None:
    away = {place: Copies(leader=1, replicas=3, in_sync=2) for place in HEALTHY.copies if place.topic == JOBS}
    assert "partitions 0-3 " in only("copies", spoilt(copies={**HEALTHY.copies, **away})).problem


def test_a_topic_of_unknown_settings_needs_one_copy_in_sync() -> None:
    strange = {Place("__consumer_offsets", 0): Copies(leader=1, replicas=1, in_sync=1)}
    assert found("copies", spoilt(copies={**HEALTHY.copies, **strange})) == []


# -- the brokers ---------------------------------------------------------------------------------------------


def internal(replication: int, **settings: str) -> Facts:
    topic = LiveTopic(
        name="__transaction_state", partitions=50, replication=replication,
        settings={key.replace("_", "."): value for key, value in settings.items()},
    )  # fmt: skip
    return spoilt(topics={**HEALTHY.topics, topic.name: topic})


def test_the_topics_that_fencing_stands_on_have_three_copies() -> None:
    assert found("internal", internal(3, unclean_leader_election_enable="false")) == []
    few = only("internal", internal(1))
    assert (few.severity, few.danger, few.problem) == (Severity.ERROR, Danger.ONCE, "has 1 copies of 3")
    assert "kafka-reassign-partitions.sh" in few.remedy
    unclean = only("internal", internal(3, unclean_leader_election_enable="true"))
    assert (unclean.severity, unclean.danger) == (Severity.ERROR, Danger.ONCE)
    assert unclean.remedy.endswith("--add-config unclean.leader.election.enable=false")


@pytest.mark.parametrize(("development", "severity"), [(True, Severity.NOTE), (False, Severity.WARNING)])
def test_few_brokers_are_normal_in_development(development: bool, severity: Severity) -> None:
    told = only("brokers", spoilt(brokers=frozenset((1, 2)), development=development))
    assert (told.severity, told.danger) == (severity, Danger.LOST)
    assert told.problem == "2 of 3: a lost disk may lose jobs"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("log_cleaner_enable", "false"),
        ("offset_metadata_max_bytes", "1024"),
        ("transaction_max_timeout_ms", "5000"),
    ],
)
def test_settings_of_brokers_that_stop_something(setting: str, value: str) -> None:
    told = only("brokers", with_brokers(**{setting: value}))
    assert (told.severity, told.subject) == (Severity.ERROR, "brokers")
    assert told.problem.startswith(setting.replace("_", "."))
    assert "server.properties" in told.remedy


def test_what_brokers_do_not_tell_is_taken_for_stock() -> None:
    assert found("brokers", spoilt(broker_settings={1: {}})) == []
    assert found("retention", spoilt(broker_settings={1: {}})) == []


# -- retention -----------------------------------------------------------------------------------------------


def test_acks_are_kept_as_long_as_the_work_they_speak_of() -> None:
    told = only("retention", with_topic(NAMES.acks("mail"), retention_ms=str(DAY_MS)))
    assert (told.severity, told.danger, told.subject) == (Severity.ERROR, Danger.STARTED, NAMES.acks("mail"))
    assert told.problem.startswith(f"keeps 24 h, {MAIL} 30 d")
    assert told.remedy.endswith(f"--add-config retention.ms={30 * DAY_MS}")
    for_ever = only("retention", with_topic(WORK, retention_ms="-1"))
    assert for_ever.remedy.endswith("--add-config retention.ms=-1")


def test_retention_of_topics_that_are_missing_is_not_asked() -> None:
    topics = {name: topic for name, topic in HEALTHY.topics.items() if name != WORK}
    assert found("retention", spoilt(topics=topics)) == []


@pytest.mark.parametrize(("minutes", "severity"), [("10080", Severity.NOTE), ("1440", Severity.WARNING)])
def test_groups_are_to_be_remembered_as_long_as_work_is_kept(minutes: str, severity: Severity) -> None:
    told = only("retention", with_brokers(offsets_retention_minutes=minutes))
    assert (told.severity, told.subject) == (severity, "brokers")
    assert "refuse to start again until `dueline era bump`" in told.problem
    assert told.remedy.startswith("offsets.retention.minutes=53280 ")


@pytest.mark.parametrize(("days", "severity"), [(6, Severity.WARNING), (25, Severity.ERROR)])
def test_work_that_nobody_does_is_told_before_it_is_deleted(days: int, severity: Severity) -> None:
    waiting = {Place(WORK, 1): NOW - days * DAY_MS, Place(WORK, 0): NOW, Place(MAIL, 0): NOW - 5 * DAY_MS}
    told = only("unacked", spoilt(unacked=waiting))
    assert (told.severity, told.danger, told.subject) == (severity, Danger.LOST, WORK)
    assert f"has waited for {days} d; after 30 d" in told.problem
    assert "dueline worker --app MODULE:APP --queue default" in told.remedy


def test_a_paused_queue_is_told_with_who_when_why_and_what_waits() -> None:
    pause = Pause(by="ann@h1", at=NOW - 3 * DAY_MS, reason="the mail server is down")
    states = {"mail": paused(None, "mail", pause), "default": unreadable("default")}
    waiting = {Place(MAIL, 0): NOW - 2 * DAY_MS}
    default, mail = found("queue_paused", spoilt(queues=states, unacked=waiting))
    assert mail.problem == (
        "has been paused for 3 d, by ann@h1: the mail server is down; its oldest run was fired 2 d ago"
    )
    assert (mail.severity, mail.subject, mail.danger) == (Severity.WARNING, "mail", Danger.ON_TIME)
    assert mail.remedy.startswith("dueline queue resume mail")
    assert "has been paused as far as can be read: what is said of it cannot be read" in default.problem
    over = resumed(states["mail"], "mail", "bob@h2", NOW)
    assert over is not None
    assert found("queue_paused", spoilt(queues={"mail": over})) == []


def test_what_a_paused_queue_will_forget_is_mended_by_resuming_it() -> None:
    states = {"default": paused(None, "default", Pause(by="ann@h1", at=NOW - 25 * DAY_MS))}
    told = only("unacked", spoilt(unacked={Place(WORK, 1): NOW - 25 * DAY_MS}, queues=states))
    assert told.remedy.startswith("dueline queue resume default; until then")
