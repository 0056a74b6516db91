"""The embedded broker for real: what it keeps, whom it refuses, and that nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from ports import free_port

from pipeline.config import running_dev_store
from pipeline.core.errors import DuelineError, Refused, StoreUnreachable
from pipeline.dev import jars
from pipeline.dev.broker import EmbeddedBroker
from pipeline.dev.running import StoreTaken, hold_lock

pytestmark = pytest.mark.timeout(300)  # several JVMs a test


def topics(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics)


def known(bootstrap: str) -> set[str] | None:
    """The same; None if it does not answer."""
    try:
        return topics(bootstrap)
    except KafkaException:
        return None


def create(bootstrap: str, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic(topic, 1)])[topic].result(10)


def test_has_the_settings_of_the_design(broker: str) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    client = AdminClient({"bootstrap.servers": broker})
    entries = client.describe_configs([resource])[resource].result(10)
    assert entries["group.min.session.timeout.ms"].value == "3000"
    assert entries["group.initial.rebalance.delay.ms"].value == "0"
    assert entries["transaction.abort.timed.out.transaction.cleanup.interval.ms"].value == "1000"
    assert entries["auto.create.topics.enable"].value == "false"


def test_data_is_kept_unless_fresh(tmp_path: Path, ended: Callable[[int], bool]) -> None:
    free = free_port()
    with EmbeddedBroker(tmp_path, port=free) as first:
        assert first.bootstrap == f"127.0.0.1:{free}"
        create(first.bootstrap, "kept")
        assert running_dev_store(tmp_path) == first.bootstrap
        cluster, pid = first.cluster_id, first.pid
        with pytest.raises(StoreTaken):
            EmbeddedBroker(tmp_path, fresh=True).start()
        assert topics(first.bootstrap) == {"kept"}  # the refused one touched nothing
        open_to_others = [p for p in tmp_path.rglob("*") if stat.S_IMODE(p.stat().st_mode) & 0o077]
        assert not [p for p in open_to_others if p.parent == tmp_path / "kafka" / "data"]
        assert (
            stat.S_IMODE(tmp_path.stat().st_mode)
            == stat.S_IMODE(first.log_file.parent.stat().st_mode)
            == 0o700
        )
    assert ended(pid)
    assert running_dev_store(tmp_path) is None
    assert not (tmp_path / "dev.json").exists()
    with EmbeddedBroker(tmp_path) as second:
        assert topics(second.bootstrap) == {"kept"}
        assert second.cluster_id == cluster
    with EmbeddedBroker(tmp_path, fresh=True) as third:
        assert topics(third.bootstrap) == set()
        assert third.cluster_id != cluster


def test_another_port_if_the_preferred_is_taken_and_the_same_after_a_crash(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        preferred = taken.getsockname()[1]
        with EmbeddedBroker(tmp_path, port=preferred) as broker:
            address = broker.bootstrap
            assert address != f"127.0.0.1:{preferred}"
            create(address, "kept")
            os.kill(broker.pid, signal.SIGKILL)
            broker.process.wait()
            broker.respawn()
            assert broker.bootstrap == address
            eventually(lambda: known(address) == {"kept"}, timeout=60)  # once it has started
            assert running_dev_store(tmp_path) == address


def test_kill_9_of_the_owner_leaves_no_jvm_and_no_lock(
    tmp_path: Path, eventually: Callable[..., None], ended: Callable[[int], bool]
) -> None:
    program = (
        "import signal, sys; from pathlib import Path; from pipeline.dev.broker import EmbeddedBroker\n"
        "b = EmbeddedBroker(Path(sys.argv[1])); b.start(); print(b.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert running_dev_store(tmp_path) is not None
        owner.kill()
    eventually(lambda: ended(pid))
    assert (tmp_path / "dev.json").exists()  # stale, so:
    assert running_dev_store(tmp_path) is None
    hold_lock(tmp_path).close()


def test_a_changed_jar_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "dueline" / f"kafka-{jars.KAFKA_VERSION}"
    cache.mkdir(parents=True)
    for path in jars.ensure(jars.cache_dir()):
        (cache / path.name).symlink_to(path)
    changed = next(cache.glob("kafka-server-4*.jar"))
    content = changed.read_bytes()
    changed.unlink()
    changed.write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with (
        pytest.raises(Refused, match=rf"{changed.name} is not the locked jar"),
        EmbeddedBroker(tmp_path / "state"),
    ):
        pass
    assert not (tmp_path / "state" / "kafka").exists()


def test_a_failed_start_shows_why_and_leaves_nothing(tmp_path: Path) -> None:
    data = tmp_path / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=1\nnode.id=7\n")
    broker = EmbeddedBroker(tmp_path)
    with pytest.raises(StoreUnreachable, match="damaged: --fresh"):
        broker.start()
    (data / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n")
    with pytest.raises(StoreUnreachable, match=r"(?s)it ended \(code 1\).*Stored node id 7"):
        broker.start()
    hold_lock(tmp_path).close()


def test_an_unusable_state_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DuelineError, match=r"cannot start.*file"):
        EmbeddedBroker(tmp_path / "file" / "state").start()
