"""Where commands that read get their parts from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.cli.output import note
from pipeline.client import parts
from pipeline.client.parts import Parts
from pipeline.config import Settings, load_settings
from pipeline.core.errors import InvalidInput
from pipeline.core.layout import Layout
from pipeline.follower import Follower


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The store that the settings name, to be read."""

    parts: Parts
    layout: Layout
    follower: Follower


def kafka_settings() -> Settings:
    """Those of a command that changes what a server could change too, and never asks one. Where a server is named and
    Kafka is not, they might be two installations: InvalidInput; where both are, one line says which is meant."""
    settings = load_settings()
    if settings.url is None:
        return settings
    if settings.bootstrap_servers is None:
        raise InvalidInput(
            "DUELINE_URL",
            "names a server, but this command always goes to Kafka: name that with DUELINE_BOOTSTRAP_SERVERS too, or"
            " leave DUELINE_URL out",
        )
    note(f"goes to Kafka at {settings.bootstrap_servers}, as this command always does, not to {settings.url}")
    return settings


@contextmanager
def following() -> Iterator[Store]:
    """Raises StoreUnreachable; Refused if its topics are missing."""
    found = parts.connect(load_settings())
    try:
        layout = found.load_layout()
        follower = Follower(reader=found.reader, names=found.names, layout=layout)
        yield Store(parts=found, layout=layout, follower=follower)
    finally:
        found.appender.close()
        found.reader.close()
