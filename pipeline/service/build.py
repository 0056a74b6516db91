"""What a process is built of. A test build can name a fault to build in; a release refuses to.

The code of the faults is not in the wheel (see pyproject.toml), so nothing in production can stop or kill a
process at a step, or take an argument out of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from pipeline.adapters.kafka_log import KafkaGroupLog
from pipeline.adapters.kafka_txn import TransactionalProducer
from pipeline.core.errors import Refused
from pipeline.dispatcher import Dispatcher

KILL_POINT = "DUELINE_KILL_POINT"
NEGATIVE_CONTROL = "DUELINE_NEGATIVE_CONTROL"
FAULTS = "pipeline.dev.killpoints"
"""Imported by name: this layer may not know it, and a wheel does not hold it."""


def passed(step: str) -> None:
    """A checkpoint that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The classes of a process's owner loop, and the checkpoint that each step of it passes."""

    checkpoint: Callable[[str], None] = passed
    dispatcher: type[Dispatcher] = Dispatcher
    log: type[KafkaGroupLog] = KafkaGroupLog
    producer: type[TransactionalProducer] = TransactionalProducer


def chosen_build(environment: Mapping[str, str]) -> Build:
    """The product, or in a test build the product with the faults that `environment` asks for.

    Raises Refused, naming the variable, if a fault is asked for and this build has none; InvalidInput if it is
    asked for wrongly.
    """
    asked = [name for name in (KILL_POINT, NEGATIVE_CONTROL) if environment.get(name)]
    if not asked:
        return Build()
    try:
        faults = import_module(FAULTS)
    except ModuleNotFoundError as error:
        if error.name != FAULTS:
            raise
        raise Refused(f"{asked[0]} is set, but faults exist in test builds only: unset it") from error
    return cast("Build", faults.build(environment))
