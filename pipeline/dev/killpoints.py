"""Faults for test builds: end or freeze the process at a step of its loop, or leave one rule of the protocol out.

This file is not in the wheel (pyproject.toml), and `service.build` refuses to start when a fault is asked for
without it. `DUELINE_KILL_POINT=flushed:stop:3` sends SIGSTOP to the process at the third passing of that step,
`…:kill:3` SIGKILL. `DUELINE_NEGATIVE_CONTROL` names a rule to leave out: whatever checks the promises must then
find a job fired twice, or it is blind.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

from confluent_kafka import TopicPartition

from pipeline.adapters.kafka_log import KafkaGroupLog
from pipeline.adapters.kafka_txn import TransactionalProducer
from pipeline.core.errors import InvalidInput, RetryStep
from pipeline.core.states import PartitionState
from pipeline.dispatcher import IDLE_MS, Dispatcher
from pipeline.ports import CommittedOffset, Membership, Put, Record
from pipeline.service.build import KILL_POINT, NEGATIVE_CONTROL, Build

STEPS = (
    "polled",
    "ingested",
    "takeover_chosen",
    "takeover_committed",
    "chosen",
    "snapshot",
    "begun",
    "produced",
    "flushed",
    "offsets_sent",
    "committed",
    "applied",
)
"""The steps of a dispatcher's loop, each named for what has just been done."""
_TRANSACTION = STEPS[STEPS.index("begun") : STEPS.index("applied")]
OPEN = frozenset(_TRANSACTION[:-1])
"""A process that ends or freezes at one of these leaves a transaction open."""
IN_TAKEOVER = tuple(f"takeover.{step}" for step in _TRANSACTION)
"""The steps of a transaction that writes takeover records; without the prefix, of one that fires jobs."""
ACTIONS: Mapping[str, signal.Signals] = MappingProxyType({"kill": signal.SIGKILL, "stop": signal.SIGSTOP})


class KillPoint:
    """A checkpoint that sends one signal to its own process, once.

    Passings are counted from the first choice of due jobs on, so that the count does not depend on how long the
    group took to settle; those of a takeover always.
    """

    def __init__(self, step: str, number: signal.Signals, passing: int) -> None:
        self.step, self.number = step, number
        self._left = passing
        self._firing = self._taking_over = False

    @classmethod
    def parse(cls, text: str) -> KillPoint:
        """`<step>:<kill|stop>[:<passing>]`; InvalidInput for anything else."""
        step, _, rest = text.partition(":")
        action, _, passing = rest.partition(":")
        if step not in STEPS and step not in IN_TAKEOVER:
            raise InvalidInput(KILL_POINT, f"{step!r} is none of {', '.join([*STEPS, *IN_TAKEOVER])}")
        if action not in ACTIONS:
            raise InvalidInput(KILL_POINT, f"{action!r} is neither kill nor stop")
        if not (passing or "1").isdecimal() or int(passing or 1) < 1:
            raise InvalidInput(KILL_POINT, f"{passing!r} is not a passing: 1 is the first")
        return cls(step, ACTIONS[action], int(passing or 1))

    def __call__(self, step: str) -> None:
        if step in ("takeover_chosen", "takeover_committed", "chosen", "polled"):
            self._taking_over = step == "takeover_chosen"
            self._firing |= step == "chosen"
        place = f"takeover.{step}" if self._taking_over and step in _TRANSACTION else step
        if place == self.step and (self._firing or place.startswith("takeover")):
            self._left -= 1
            if self._left == 0:
                self.strike()

    def strike(self) -> None:
        """To this very thread, so that it runs no further instruction; the signal takes the process as a whole."""
        signal.pthread_kill(threading.get_ident(), self.number)


# -- negative controls: each leaves out one rule of DESIGN §5 -------------------------------------------------

WATERMARK_S = 2.0
LATE_MS = 1_000
"""A commit this long after the choice is one that something came in between of."""
REJOIN_S = 8.0


class WatermarkLog(KafkaGroupLog):
    """Also says what the consumer believes to be the end of a partition."""

    def end(self, partition: int) -> int:
        place = TopicPartition(self._topic, partition)
        _, high = self._consumer.get_watermark_offsets(place, WATERMARK_S)
        return high


class WatermarkBarrier(Dispatcher):
    """Takes the consumer's end offset as the barrier instead of the takeover record (H1). To a read_committed
    consumer that is the last stable offset, below the records of a transaction that is still open."""

    def step(self, patience_ms: int = IDLE_MS) -> int:
        log = cast("WatermarkLog", self._log)
        for partition in self._partitions.values():
            restoring = partition.state is PartitionState.RESTORING
            if restoring and partition.next_offset >= log.end(partition.number):
                partition.state = partition.state.advance(PartitionState.RUNNING)
        return super().step(patience_ms)


class LateMetadata(KafkaGroupLog):
    """Takes the group metadata when it commits, not when the batch was chosen (H2), as a program does whose
    consumer is polled by another thread meanwhile. The batch's partitions may be somebody else's by then."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._chosen_at = 0.0
        self._kept: list[Record] = []
        super().__init__(*arguments, **keywords)

    def membership(self) -> Membership:
        self._chosen_at = time.monotonic()
        return super().membership()

    def poll(self, limit: int, timeout_ms: int) -> Sequence[Record]:
        kept, self._kept = self._kept, []
        return kept or super().poll(limit, timeout_ms)

    def commit(
        self, puts: Sequence[Put], offsets: Mapping[int, CommittedOffset], membership: Membership
    ) -> None:
        if (time.monotonic() - self._chosen_at) * 1000 > LATE_MS:
            membership = membership._replace(opaque=self._latest(membership.generation))
        super().commit(puts, offsets, membership)

    def _latest(self, generation: int) -> Any:
        deadline = time.monotonic() + REJOIN_S
        while time.monotonic() < deadline:
            self._kept += super().poll(1_000, 50)
            try:
                latest = super().membership()
            except RetryStep:
                continue
            if latest.generation != generation:
                return latest.opaque
        raise RetryStep("the group did not move on")


class OffsetsFirst(TransactionalProducer):
    """Sends the offsets before the records (H5): the generation is checked while nothing stands in the log yet, so
    the next owner's takeover record does not wait for what is to come."""

    def _fill(
        self, puts: Sequence[Put], offsets: list[TopicPartition], group_metadata: Any, deadline: float
    ) -> None:
        self._send_offsets(offsets, group_metadata, deadline)
        self._at("offsets_sent")
        self._append(puts, deadline)
        self._at("produced")
        self._flush(deadline)
        self._at("flushed")


CONTROLS: Mapping[str, Build] = MappingProxyType(
    {
        "watermark_barrier": Build(dispatcher=WatermarkBarrier, log=WatermarkLog),
        "late_metadata": Build(log=LateMetadata),
        "offsets_before_flush": Build(producer=OffsetsFirst),
    }
)


def build(environment: Mapping[str, str]) -> Build:
    """What `environment` asks for. InvalidInput naming the variable."""
    control, point = environment.get(NEGATIVE_CONTROL), environment.get(KILL_POINT)
    if control and control not in CONTROLS:
        raise InvalidInput(NEGATIVE_CONTROL, f"{control!r} is none of {', '.join(CONTROLS)}")
    built = CONTROLS[control] if control else Build()
    return replace(built, checkpoint=KillPoint.parse(point)) if point else built
