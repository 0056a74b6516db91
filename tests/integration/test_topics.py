"""The topics of an installation on a real broker (DESIGN §3)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import jsonschema
import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from pipeline import codec
from pipeline.adapters.kafka_admin import (
    TopicAdmin,
    check,
    ensure_topics,
    load_era,
    load_layout,
    preview,
    topic_admin,
    upgrade,
)
from pipeline.cli import main
from pipeline.config import Settings, load_settings
from pipeline.core.errors import Refused, StoreUnreachable
from pipeline.core.layout import Layout, default_layout
from pipeline.core.topics import DEFAULT_QUEUE, Finding, Repair, TopicPlan, Wish, settle

ROOT = Path(__file__).parents[2]
SMALL = Wish(shards=2, ring=2, queues={DEFAULT_QUEUE: 2})
"""Fewer partitions than the default: the broker is shared by the whole run."""


@pytest.fixture
def settings(broker: str, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    monkeypatch.setenv("DUELINE_BOOTSTRAP_SERVERS", broker)
    monkeypatch.setenv("DUELINE_PREFIX", prefix)
    monkeypatch.setenv("DUELINE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("DUELINE_STORE_TIMEOUT_MS", "20000")  # writers take turns, on a busy machine too
    return load_settings()


@pytest.fixture
def admin(settings: Settings) -> TopicAdmin:
    return topic_admin(settings)


def eventually(question: Callable[[], Any], timeout_s: float = 30) -> Any:
    """The first true answer: a broker learns a little later what its controller took."""
    deadline = time.monotonic() + timeout_s
    while not (answer := question()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
    return answer


def topics_of(settings: Settings) -> list[str]:
    client = AdminClient({"bootstrap.servers": settings.require_bootstrap()})
    return sorted(
        name for name in client.list_topics(timeout=10).topics if name.startswith(f"{settings.prefix}.")
    )


def answer(name: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """What the command wrote to stdout, which must fit its schema."""
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, json.loads((ROOT / "schemas" / "cli" / f"{name}.json").read_text()))
    return data


# -- create --------------------------------------------------------------------------------------------------


def test_create_makes_topics_layout_and_era_and_a_second_create_changes_nothing(settings: Settings) -> None:
    first = ensure_topics(settings)
    assert sorted(first.created) == topics_of(settings) == sorted(topic.name for topic in first.topics)
    assert load_layout(settings) == first.layout
    assert first.layout == replace(
        default_layout(),
        fingerprints=tuple(sorted(codec.fingerprints())),
        product_version=first.layout.product_version,
    )
    assert load_era(settings) == 1
    assert check(settings) == (first.layout, [])

    second = ensure_topics(settings)
    assert (second.created, second.findings, second.layout) == ((), (), first.layout)
    assert upgrade(settings).changed == ()


def test_one_broker_is_warned_about(settings: Settings) -> None:
    assert "replication factor 1 instead of 3" in preview(settings, wish=SMALL).warnings[0]


def test_a_queue_is_added_later_and_keeps_its_partitions(settings: Settings) -> None:
    ensure_topics(settings, wish=SMALL)
    report = ensure_topics(settings, wish=Wish(queues={"mail": 3}))
    assert sorted(report.created) == [settings.names.acks("mail"), settings.names.work("mail")]
    assert load_layout(settings).queues == {DEFAULT_QUEUE: 2, "mail": 3}
    assert ensure_topics(settings, wish=Wish(queues={"mail": None})).created == ()
    with pytest.raises(Refused, match="queue mail is 3, asked for 4"):
        ensure_topics(settings, wish=Wish(queues={"mail": 4}))


def test_creates_at_once_agree(settings: Settings) -> None:
    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(lambda _: ensure_topics(settings, wish=SMALL), range(3)))
    assert {report.layout.identity() for report in reports} == {load_layout(settings).identity()}
    created = [name for report in reports for name in report.created]
    assert sorted(created) == topics_of(settings)
    assert load_era(settings) == 1
    assert check(settings)[1] == []


def test_of_different_creates_at_once_one_wins_and_the_others_are_refused(settings: Settings) -> None:
    def create(shards: int) -> object:
        try:
            return ensure_topics(settings, wish=replace(SMALL, shards=shards)).layout.shards
        except Refused as refused:
            return refused

    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(create, (1, 2, 3)))
    won = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert won == [load_layout(settings).shards]
    assert all(f"shards is {won[0]}, asked for" in str(o) for o in outcomes if not isinstance(o, int))
    assert check(settings)[1] == []


def test_writers_at_once_lose_nothing(settings: Settings, admin: TopicAdmin) -> None:
    """Each adds its own queue to what it read: a lost update would be a queue that is gone."""
    ensure_topics(settings, wish=SMALL)

    def add(number: int) -> None:
        meta = topic_admin(settings).meta
        meta.update(
            lambda layout: replace(layout, queues={**layout.queues, f"q{number}": 1}) if layout else SMALL
        )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    layout = admin.meta.read().layout
    assert layout is not None
    assert set(layout.queues) == {DEFAULT_QUEUE, "q0", "q1", "q2", "q3"}


@pytest.fixture
def owner(settings: Settings) -> Producer:
    """Of the installation, which is made: owners write `g/` records to `meta` in transactions."""
    ensure_topics(settings, wish=SMALL)
    made = Producer(
        {"bootstrap.servers": settings.require_bootstrap(), "transactional.id": f"{settings.prefix}.o"}
    )
    made.init_transactions(30)
    return made


def guarding(settings: Settings, owner: Producer) -> None:
    """A transaction on `meta` that is open: readers see nothing after it."""
    owner.begin_transaction()
    owner.produce(settings.names.meta, b"", b"g/", partition=0)
    owner.flush(10)


def test_a_writer_waits_for_what_an_open_transaction_hides(settings: Settings, owner: Producer) -> None:
    """One that trusts the end it sees would overwrite what the writer before it committed."""
    guarding(settings, owner)

    def add(queue: str) -> None:
        topic_admin(settings).meta.update(lambda layout: settle(layout, Wish(queues={queue: 1})))

    with ThreadPoolExecutor(1) as pool:
        both = pool.submit(lambda: [add("q1"), add("q2")])
        wait([both], timeout=1)
        owner.commit_transaction(10)
        both.result(30)
    layout = topic_admin(settings).meta.read().layout
    assert layout is not None
    assert set(layout.queues) == {DEFAULT_QUEUE, "q1", "q2"}


def test_what_was_written_is_read_as_soon_as_its_writer_has_its_answer(
    settings: Settings, admin: TopicAdmin, owner: Producer
) -> None:
    """Also if a transaction that was begun meanwhile hides it for a while."""
    ending = Timer(0.5, owner.commit_transaction, [10])

    def add(layout: Layout | None) -> Layout:
        guarding(settings, owner)
        ending.start()
        return settle(layout, Wish(queues={"q1": 1}))

    try:
        admin.meta.update(add)
        layout = admin.meta.read().layout
    finally:
        ending.join()
    assert layout is not None
    assert set(layout.queues) == {DEFAULT_QUEUE, "q1"}


def test_a_topic_made_by_somebody_else_with_other_partitions_is_refused_before_anything_is_written(
    settings: Settings, admin: TopicAdmin
) -> None:
    foreign = TopicPlan(name=settings.names.jobs, partitions=5, replication=1, settings={})
    admin.create([foreign])
    with pytest.raises(Refused, match=r"jobs: partitions is 5, planned 4"):
        ensure_topics(settings, wish=SMALL)
    assert admin.meta.read().layout is None


def test_topics_made_by_somebody_else_as_printed_get_their_layout(
    settings: Settings, admin: TopicAdmin
) -> None:
    """What `--print` is for: create by other hands, then `topics create` writes the layout and no topic."""
    admin.create(preview(settings, wish=SMALL).topics)
    assert ensure_topics(settings, wish=SMALL).created == ()
    assert load_layout(settings).partitions == 4


# -- check and upgrade ---------------------------------------------------------------------------------------


def test_an_altered_setting_is_found_and_mended(settings: Settings, admin: TopicAdmin) -> None:
    ensure_topics(settings, wish=SMALL)
    work = settings.names.work(DEFAULT_QUEUE)
    admin.alter(work, {"retention.ms": "3600000", "flush.messages": "7"})
    expected = Finding(
        topic=work, setting="retention.ms", live="3600000", planned="2592000000", repair=Repair.UPGRADE
    )
    assert eventually(lambda: check(settings)[1]) == [expected]
    assert ensure_topics(settings, wish=SMALL).findings == (expected,)  # reported, left as it is

    report = upgrade(settings)
    assert (report.changed, report.findings) == ((expected,), ())
    assert check(settings)[1] == []
    assert admin.live([work])[work].settings["flush.messages"] == "7"  # not ours: left alone


def test_a_missing_topic_stops_everybody_until_upgrade_makes_it(settings: Settings) -> None:
    ensure_topics(settings, wish=SMALL)
    dead = settings.names.dead
    client = AdminClient({"bootstrap.servers": settings.require_bootstrap()})
    client.delete_topics([dead])[dead].result(10)
    findings = eventually(lambda: check(settings)[1])
    assert [(finding.topic, finding.live) for finding in findings] == [(dead, None)]
    with pytest.raises(Refused, match=rf"topics are missing \({dead}\): run `dueline topics create`"):
        load_layout(settings)
    assert upgrade(settings).created == (dead,)
    assert load_layout(settings).partitions == 4


def test_h24_grown_partitions_are_refused_with_the_exact_difference(
    settings: Settings, admin: TopicAdmin
) -> None:
    ensure_topics(settings, wish=SMALL)
    events = settings.names.events
    admin.grow(events, 6)
    eventually(lambda: admin.partitions(events) == 6)
    for refused in (lambda: check(settings), lambda: load_layout(settings), lambda: ensure_topics(settings)):
        with pytest.raises(Refused, match=rf"layout mismatch: {events}: partitions is 6, planned 4") as error:
            refused()
        assert error.value.exit_code == 4


def test_an_expected_layout_is_compared_with_the_stored_one(settings: Settings) -> None:
    ensure_topics(settings, wish=SMALL)
    with pytest.raises(Refused, match="shards is 2, asked for 4; ring is 2, asked for 6"):
        check(settings, wish=Wish(shards=4, ring=6))


def test_fleet_grows_with_the_cluster(settings: Settings, admin: TopicAdmin) -> None:
    ensure_topics(settings, wish=SMALL)
    fleet = settings.names.fleet
    admin.grow(fleet, 4)  # as on a cluster that had four brokers once
    eventually(lambda: admin.partitions(fleet) == 4)
    assert check(settings)[1] == []


def test_upgrade_announces_new_schemas(settings: Settings, admin: TopicAdmin) -> None:
    ensure_topics(settings, wish=SMALL)
    known = tuple(sorted(codec.fingerprints()))
    older = replace(load_layout(settings), fingerprints=known[1:], product_version="0.0.1")
    admin.meta.update(lambda _: older)
    assert ensure_topics(settings, wish=SMALL).layout == older  # only an upgrade announces
    report = upgrade(settings)
    assert report.announced == (known[0],)
    assert set(load_layout(settings).fingerprints) == set(known)


@pytest.mark.parametrize("question", [load_layout, load_era, check, upgrade])
def test_without_an_installation_everything_says_what_to_run(
    settings: Settings, question: Callable[[Settings], object]
) -> None:
    with pytest.raises(Refused, match="run `dueline topics create`"):
        question(settings)
    assert topics_of(settings) == []


# -- what processes ask at start -----------------------------------------------------------------------------


def test_identity_of_cluster_and_topic(settings: Settings, admin: TopicAdmin) -> None:
    ensure_topics(settings, wish=SMALL)
    names = settings.names
    assert admin.cluster_id() == admin.cluster_id() != ""
    assert admin.topic_id(names.jobs) != admin.topic_id(names.events)
    assert (admin.partitions(names.jobs), admin.partitions(names.fleet)) == (4, 3)
    with pytest.raises(Refused, match="is missing"):
        admin.topic_id(f"{settings.prefix}.nothing")


def test_the_session_is_the_lowest_the_broker_allows(admin: TopicAdmin) -> None:
    assert admin.lowest_session_timeout() == 3000


def test_every_broker_setting_of_the_compose_file_exists(broker: str, admin: TopicAdmin) -> None:
    environment = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["kafka-1"][
        "environment"
    ]
    client = AdminClient({"bootstrap.servers": broker})
    node = next(iter(client.list_topics(timeout=60).brokers))
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node))
    known = client.describe_configs([resource])[resource].result(10)
    own = {"KAFKA_HEAP_OPTS"}  # read by the start script, not by the broker
    asked = {name for name in environment if name.startswith("KAFKA_")} - own
    assert {name.removeprefix("KAFKA_").lower().replace("_", ".") for name in asked} - known.keys() == set()


# -- unreachable ---------------------------------------------------------------------------------------------


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("question", [load_layout, load_era, check, ensure_topics, upgrade, preview])
def test_an_unreachable_broker_is_said_in_time(
    question: Callable[[Settings], object], closed_port: int
) -> None:
    nobody = load_settings(bootstrap_servers=f"127.0.0.1:{closed_port}", store_timeout_ms=300)
    start = time.monotonic()
    with pytest.raises(StoreUnreachable, match=f"cannot reach Kafka at 127.0.0.1:{closed_port}"):
        question(nobody)
    assert time.monotonic() - start < 15


def test_the_command_exits_5_within_10_seconds(closed_port: int) -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "topics", "check"],
        env={**os.environ, "DUELINE_BOOTSTRAP_SERVERS": f"127.0.0.1:{closed_port}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (5, "")
    assert time.monotonic() - start < 25  # half of it for a machine that is busy
    assert done.stderr.startswith(f"dueline: cannot reach Kafka at 127.0.0.1:{closed_port}")
    assert done.stderr.count("\n") == 1


# -- the command line ----------------------------------------------------------------------------------------

SIZE = ["--shards", "2", "--ring", "2", "--queue", "default:2"]


def test_create_check_alter_check_upgrade(
    settings: Settings, admin: TopicAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topics", "create", *SIZE, "--queue", "mail:1", "--bucket-width", "30s", "--json"]) == 0
    created = answer("topics_create", capsys)
    assert sorted(created["created"]) == topics_of(settings)
    assert created["layout"]["queues"] == {"default": 2, "mail": 1}
    assert created["layout"]["bucket_width_ms"] == 30_000

    assert main(["topics", "check", "--json", *SIZE]) == 0
    assert answer("topics_check", capsys)["ok"] is True

    assert main(["topics", "check", "--json", "--queue", "nowhere:1"]) == 1
    missing = {finding["topic"] for finding in answer("topics_check", capsys)["findings"]}
    assert missing == {settings.names.work("nowhere"), settings.names.acks("nowhere")}

    admin.alter(settings.names.jobs, {"cleanup.policy": "delete"})
    eventually(lambda: check(settings)[1])
    assert main(["topics", "check", "--json"]) == 1
    (finding,) = answer("topics_check", capsys)["findings"]
    assert (finding["setting"], finding["live"], finding["planned"]) == (
        "cleanup.policy",
        "delete",
        "compact",
    )

    assert main(["topics", "upgrade", "--json"]) == 0
    assert answer("topics_upgrade", capsys)["changed"] == [finding]
    assert main(["topics", "check"]) == 0
    assert capsys.readouterr().out == "everything is as planned\n"


def test_print_creates_nothing(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "create", "--print"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert all(line.startswith("kafka-topics.sh --bootstrap-server") for line in lines)
    assert f"--topic {settings.names.jobs} --partitions 24 --replication-factor 1" in lines[1]
    assert main(["topics", "create", "--print", "--json", "--queue", "mail:3"]) == 0
    planned = answer("topics_create", capsys)
    assert planned["layout"]["queues"] == {"default": 12, "mail": 3}
    assert len(planned["commands"]) == 9
    assert topics_of(settings) == []


def test_print_of_an_upgrade_names_what_differs(
    settings: Settings, admin: TopicAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    ensure_topics(settings, wish=SMALL)
    acks = settings.names.acks(DEFAULT_QUEUE)
    admin.alter(acks, {"cleanup.policy": "delete"})
    eventually(lambda: check(settings)[1])
    assert main(["topics", "upgrade", "--print", "--json"]) == 0
    assert answer("topics_upgrade", capsys)["commands"] == [
        f"kafka-configs.sh --bootstrap-server {settings.bootstrap_servers} --alter --topic {acks}"
        " --add-config 'cleanup.policy=[compact,delete]'"
    ]
    assert check(settings)[1] != []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--queue", "x:y"], "--queue"),
        (["--queue", "x:0"], "queue"),
        (["--queue", "Upper"], "queue"),
        (["--bucket-width", "60"], "--bucket-width"),
        (["--bucket-width", "0s"], "--bucket-width"),
        (["--shards", "0"], "--shards"),
        (["--shards", "1001", "--ring", "1"], "shards"),
    ],
)
def test_bad_input_exits_2_with_nothing_stored(
    settings: Settings, capsys: pytest.CaptureFixture[str], options: list[str], field: str
) -> None:
    assert main(["topics", "create", "--print", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert field in captured.err
    assert captured.err.count("\n") == 1
    assert topics_of(settings) == []


def test_config_show_answers_in_its_schema(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUELINE_KAFKA__SASL_PASSWORD", "hunter2")
    monkeypatch.setenv("DUELINE_PREFX", "typo")
    assert main(["config", "show", "--json"]) == 0
    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err
    assert "DUELINE_PREFX is not a setting; did you mean DUELINE_PREFIX?" in captured.err
    rows = json.loads(captured.out)
    jsonschema.validate(rows, json.loads((ROOT / "schemas" / "cli" / "config_show.json").read_text()))
    sources = {row["name"]: row["source"] for row in rows}
    assert (sources["prefix"], sources["concurrency"]) == ("DUELINE_PREFIX", "default")
