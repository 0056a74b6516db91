"""Where the night is played: which Kafka, under which prefix, and how nothing of it is left there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pipeline.adapters.kafka_admin import topic_admin
from pipeline.config import Settings, load_settings, running_dev_store
from pipeline.core.errors import InvalidInput
from pipeline.dev import jars
from pipeline.dev.broker import EmbeddedBroker
from pipeline.dev.demo.screen import Screen
from pipeline.dev.demo.steps import step

DELETE_TIMEOUT_S = 10.0
FRESH_TIMEOUT_MS = 10_000
"""Of what is asked of a broker that has just started here, perhaps on a busy machine. Not more than the
transaction time-out with which the layout is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """`kind` is `embedded` (started here), `running` (of a `dueline dev`) or `external` (told)."""

    kind: str
    settings: Settings

    def described(self) -> dict[str, str]:
        """As the report shows it."""
        settings = self.settings
        return {"kind": self.kind, "bootstrap": settings.require_bootstrap(), "prefix": settings.prefix}


@contextmanager
def opened(told: str | None, directory: Path, screen: Screen, *, keep: bool) -> Iterator[Store]:
    """A store with a prefix nobody else has. Afterwards its topics and groups are gone, unless `keep`.

    `told` wins over DUELINE_BOOTSTRAP_SERVERS, that over a running `dueline dev`, that over a broker of our
    own in `directory`. KAFKA_BOOTSTRAP_SERVERS is somebody's cluster, not for a demo.
    """
    shell = load_settings()
    if told is None and shell.source("bootstrap_servers") == "DUELINE_BOOTSTRAP_SERVERS":
        told = shell.bootstrap_servers
    found = told or running_dev_store(shell.state_dir)
    if found is not None:
        store = _store("external" if told else "running", found, directory, shell if told else None)
        screen.tell(f"store: {'the Kafka you named' if told else 'the Kafka of `dueline dev`'}, at {found}")
        with step("first contact"):  # a store that cannot be reached needs no tidying up
            topic_admin(store.settings).cluster_id()
        try:
            yield store
        finally:
            if not keep:
                remove(store.settings, screen)
        return
    if not jars.complete(jars.cache_dir()):
        screen.tell(f"fetching Kafka {jars.KAFKA_VERSION} (44 MB, once)")
    with EmbeddedBroker(directory / "broker") as broker:
        screen.tell(f"store: Kafka {jars.KAFKA_VERSION}, started here, at {broker.bootstrap}")
        yield _store("embedded", broker.bootstrap, directory, None)


def _store(kind: str, bootstrap: str, directory: Path, shell: Settings | None) -> Store:
    """Passwords and protocols of the shell go along to a store that was named, and to no other."""
    try:
        settings = load_settings(bootstrap_servers=bootstrap)
    except InvalidInput as error:
        raise InvalidInput("store", error.problem) from error
    return Store(
        kind=kind,
        settings=Settings(
            bootstrap_servers=settings.bootstrap_servers,
            prefix=f"demo-{secrets.token_hex(4)}",
            state_dir=directory / "state",
            store_timeout_ms=FRESH_TIMEOUT_MS if kind == "embedded" else settings.store_timeout_ms,
            kafka=shell.kafka if shell is not None else {},
        ),
    )


def remove(settings: Settings, screen: Screen) -> None:
    """Delete the topics and groups of this prefix. What cannot be deleted is told, not raised: the night is
    over."""
    admin = AdminClient({**settings.client_config(), "log_level": 0})
    names = settings.names
    try:
        present = admin.list_topics(timeout=DELETE_TIMEOUT_S).topics
        topics = [topic for topic in present if topic.startswith(f"{names.prefix}.")]
        futures = admin.delete_topics(topics, operation_timeout=DELETE_TIMEOUT_S) if topics else {}
        groups = [names.dispatcher_group, names.worker_group(settings.queue)] if topics else []
        futures |= admin.delete_consumer_groups(groups, request_timeout=DELETE_TIMEOUT_S) if groups else {}
        for name, future in futures.items():
            try:
                future.result(DELETE_TIMEOUT_S)
            except (KafkaException, TimeoutError) as error:
                screen.tell(f"{name} could not be deleted: {error}")
    except KafkaException as error:
        screen.tell(f"the topics of {names.prefix} could not be deleted: {error}")
