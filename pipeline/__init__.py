"""Dueline: a distributed job scheduler on Apache Kafka.

    from pipeline import Dueline

    app = Dueline()

    @app.job("email.send", max_attempts=5)
    def send(ctx, to): ...

    app.schedule("email.send", {"to": "a@b"}, in_="10m")

Public names are imported when first used (PEP 562), so a command that only prints its help loads none.
"""

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from pipeline.client import parts as _parts

if TYPE_CHECKING:
    from typing import Any

    from pipeline.client import Dueline, JobChange, JobRef, Parts
    from pipeline.client.schedules import ScheduleChange
    from pipeline.config import Settings
    from pipeline.core.context import Context
    from pipeline.core.errors import (
        DuelineError,
        InvalidInput,
        InvalidSchedule,
        JobFailed,
        NotAllowed,
        NotFound,
        Refused,
        StoreUnreachable,
    )
    from pipeline.core.handler import Cancel, Dead, Fenced, Retry, Snooze
    from pipeline.core.registry import DeadJob
    from pipeline.core.retry import RetryPolicy
    from pipeline.core.timing import preview

__all__ = [
    "Cancel",
    "Context",
    "Dead",
    "DeadJob",
    "Dueline",
    "DuelineError",
    "Fenced",
    "InvalidInput",
    "InvalidSchedule",
    "JobChange",
    "JobFailed",
    "JobRef",
    "NotAllowed",
    "NotFound",
    "Refused",
    "Retry",
    "RetryPolicy",
    "ScheduleChange",
    "Snooze",
    "StoreUnreachable",
    "connect",
    "preview",
]

__version__ = "0.1.0"

_PLACES = {
    "pipeline.client": ("Dueline", "JobChange", "JobRef"),
    "pipeline.client.schedules": ("ScheduleChange",),
    "pipeline.core.context": ("Context",),
    "pipeline.core.errors": (
        "DuelineError",
        "InvalidInput",
        "InvalidSchedule",
        "JobFailed",
        "NotAllowed",
        "NotFound",
        "Refused",
        "StoreUnreachable",
    ),
    "pipeline.core.handler": ("Cancel", "Dead", "Fenced", "Retry", "Snooze"),
    "pipeline.core.registry": ("DeadJob",),
    "pipeline.core.retry": ("RetryPolicy",),
    "pipeline.core.timing": ("preview",),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


def connect(settings: "Settings") -> "Parts":
    """The real parts of a client. Composed here, above all layers, since a client knows no adapter; imported
    only when one connects. Raises StoreUnreachable if no store is known."""
    from pipeline.adapters.kafka_admin import load_layout
    from pipeline.adapters.kafka_append import KafkaAppender
    from pipeline.adapters.kafka_feed import KafkaFeed
    from pipeline.adapters.kafka_io import KafkaReader
    from pipeline.adapters.kafka_lag import group_progress
    from pipeline.adapters.kafka_scan import KafkaScan
    from pipeline.adapters.store_clock import kafka_clock
    from pipeline.client.parts import Parts
    from pipeline.follower import Follower

    bootstrap, names = settings.require_bootstrap(), settings.names
    tell_dev_store(settings)
    appender, reader = KafkaAppender(bootstrap, settings.kafka), KafkaReader(bootstrap, settings.kafka)
    return Parts(
        appender=appender,
        clock=kafka_clock(bootstrap, names.fleet, settings.kafka),
        reader=reader,
        names=names,
        load_layout=lambda: load_layout(settings),
        finder=lambda layout: Follower(reader=reader, names=names, layout=layout),
        open_feed=lambda: KafkaFeed(bootstrap, names.events, settings.kafka),
        group_progress=lambda *place: group_progress(bootstrap, settings.kafka, *place),
        open_scan=lambda: KafkaScan(bootstrap, settings.kafka),
    )


def tell_dev_store(settings: "Settings") -> None:
    """Say on stderr, once per process, that the store is the one that `dueline dev` runs: nobody named it."""
    from pipeline.config import running_dev_store

    if settings.bootstrap_servers is None and (found := running_dev_store(settings.state_dir)):
        _tell(found)


@cache
def _tell(bootstrap: str) -> None:
    sys.stderr.write(f"dueline: store: the development store at {bootstrap}\n")


_parts.connector = connect

if not TYPE_CHECKING:  # a type checker sees the imports above

    def __getattr__(name: str) -> "Any":
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)
