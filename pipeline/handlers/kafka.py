"""The handler `kafka`: append a record to a topic, exactly once, for it goes into the ack transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pipeline.core.context import Context
from pipeline.core.handler import Dead, InvalidPayload
from pipeline.core.times import written_instant
from pipeline.handlers.fields import Fields

FIELDS = ("topic", "key", "headers", "value", "value_base64", "json", "partition")
NOMINAL_AT, LAST_SUCCESS_AT = "dueline-nominal-at", "dueline-last-success-at"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaHandler:
    """`allow` are names of topics and `prefix*`."""

    allow: tuple[str, ...]

    def run(self, ctx: Context, payload: Any) -> dict[str, Any]:
        """Append the record of the payload when the run is acked. Dead if its topic is not allowed; InvalidInput if it
        does not exist (yet) or is one of ours."""
        fields = Fields(payload, FIELDS)
        topic = fields.text("topic")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
            raise InvalidPayload("topic: it is no name of a topic")
        if not self._allowed(topic):
            raise Dead(f"topic: {topic} is not allowed by DUELINE_TOPIC_ALLOW of the workers")
        key = None if fields.get("key") is None else fields.text("key")
        headers = {**_instants(ctx), **fields.texts("headers")}
        ctx.produce(topic, _value(fields), key=key, headers=headers, partition=_partition(fields))
        return {"topic": topic}

    def _allowed(self, topic: str) -> bool:
        if topic.startswith("__"):  # Kafka's own
            return False
        return any(
            topic.startswith(known[:-1]) if known.endswith("*") else topic == known for known in self.allow
        )


def _instants(ctx: Context) -> dict[str, str]:
    """Of a schedule's occurrence: what it is for, and from where a report that it asks for goes on."""
    if not ctx.occurrence_id.startswith("s:"):
        return {}
    last = ctx.last_success_at
    told = {} if last is None else {LAST_SUCCESS_AT: written_instant(last)}
    return {NOMINAL_AT: written_instant(ctx.nominal_at), **told}


def _value(fields: Fields) -> bytes | None:
    """None = a tombstone, which must be asked for with `"value": null`."""
    name = fields.one_of("value", "value_base64", "json")
    if name is None:
        raise InvalidPayload("value: give value, value_base64 or json; null is a tombstone")
    return None if name == "value" and fields.get(name) is None else fields.content(name)


def _partition(fields: Fields) -> int | None:
    value = fields.get("partition")
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise InvalidPayload("partition: it must be a whole number from 0 up")
