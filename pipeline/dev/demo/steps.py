"""Which step of the night a failure belongs to: "not acknowledged in time" alone does not say of what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.core.errors import StoreUnreachable


@contextmanager
def step(name: str) -> Iterator[None]:
    """StoreUnreachable from inside is raised again with the step's name in front. Other errors name a process
    or a field already."""
    try:
        yield
    except StoreUnreachable as error:
        raise StoreUnreachable(f"{name}: {error}") from error
