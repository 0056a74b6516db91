"""Where commands that read get their parts from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.client import parts
from pipeline.client.parts import Parts
from pipeline.config import load_settings
from pipeline.core.layout import Layout
from pipeline.follower import Follower


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The store that the settings name, to be read."""

    parts: Parts
    layout: Layout
    follower: Follower


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
