"""Records as the container files of a backup hold them (schemas/backup_record.avsc), as plain values: there are
millions of them, and fastavro reads and writes those."""

from __future__ import annotations

from io import BytesIO
from typing import Any, cast

from fastavro import schemaless_reader, schemaless_writer

from pipeline import codec
from pipeline.ports import Headers, Record
from pipeline.view import headers_of

Plain = dict[str, Any]
"""The fields of a `core.backup.BackupRecord` by name."""


def plain(topic: str, record: Record) -> Plain:
    """A record of `topic`, named without the prefix, that is no tombstone."""
    return {
        "topic": topic,
        "partition": record.partition(),
        "offset": record.offset(),
        "at": record.timestamp()[1],
        "key": record.key(),
        "value": record.value(),
        "headers": [{"name": name, "value": value or b""} for name, value in headers_of(record)],
        "starts": 0,
        "token": None,
    }


def headers(record: Plain) -> Headers:
    return [(each["name"], each["value"]) for each in record["headers"]]


def pack(record: Plain) -> bytes:
    """As a container file holds it."""
    body = BytesIO()
    schemaless_writer(body, codec.BACKUP_RECORD.schema, record)
    return body.getvalue()


def unpack(data: bytes) -> Plain:
    """What `pack` was given."""
    record: Any = schemaless_reader(BytesIO(data), codec.BACKUP_RECORD.schema, None)
    return cast("Plain", record)
