"""The records of an installation as an outsider knows them: `schemas/` and nothing of the product's code."""

from __future__ import annotations

import hashlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro

SCHEMAS = Path(__file__).parents[2] / "schemas"
RELEASED = json.loads((SCHEMAS / "released.json").read_text("utf-8"))
_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def _schema(file: str) -> Any:
    return fastavro.parse_schema(json.loads((SCHEMAS / file).read_text("utf-8")))


_READERS = {fingerprint: _schema(entry["file"]) for fingerprint, entry in RELEASED.items()}
_WRITERS = {
    entry["file"].removesuffix(".avsc"): (int(fingerprint, 16).to_bytes(8, "little"), _READERS[fingerprint])
    for fingerprint, entry in RELEASED.items()
    if "/" not in entry["file"]
}


def read(value: bytes) -> dict[str, Any]:
    """A value of any released schema; ValueError if it is none."""
    if value[:2] != b"\xc3\x01":
        raise ValueError(f"not framed: {value[:12]!r}")
    schema = _READERS.get(f"{int.from_bytes(value[2:10], 'little'):016x}")
    if schema is None:
        raise ValueError(f"unknown schema {value[2:10].hex()}")
    decoded: dict[str, Any] = fastavro.schemaless_reader(BytesIO(value[10:]), schema, None)
    return decoded


def write(kind: str, value: dict[str, Any]) -> bytes:
    fingerprint, schema = _WRITERS[kind]
    out = BytesIO(b"\xc3\x01" + fingerprint)
    out.seek(10)
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def murmur2(data: bytes) -> int:
    """As Kafka's Java client, made positive."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def _crockford(letter: str, number: int) -> str:
    return letter + "".join(_CROCKFORD[number >> 5 * place & 31] for place in range(25, -1, -1))


def anonymous(due: int, random80: int) -> str:
    return _crockford("j", due << 80 | random80)


def keyed(key: str) -> str:
    digest = hashlib.sha256(key.encode()).digest()[:12]
    return _crockford("k", murmur2(key.encode()) << 96 | int.from_bytes(digest, "big"))


class Layout:
    """Where jobs live, from what `topics create --json` said."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.shards, self.ring, self.skew = said["shards"], said["ring"], said["skew"]
        self.partitions, self.width = said["partitions"], said["bucket_width_ms"]
        self.queues: dict[str, int] = said["queues"]

    def home(self, job_id: str) -> int:
        number = 0
        for letter in job_id.partition(".")[0][1:]:
            number = number << 5 | _CROCKFORD.index(letter)
        if job_id[0] == "k":
            return (number >> 96) % self.partitions
        shard = murmur2(job_id.encode()) % self.shards
        return int(shard * self.ring + ((number >> 80) // self.width + self.skew[shard]) % self.ring)

    def work(self, queue: str, routing: str) -> int:
        return murmur2(routing.encode()) % self.queues[queue]


def verify_vectors() -> None:
    """What we compute agrees with the published vectors; AssertionError if not."""
    for vector in json.loads((SCHEMAS / "vectors/hash.json").read_text("utf-8"))["vectors"]:
        assert murmur2(bytes.fromhex(vector["hex"])) == vector["hash"], vector
    ids = json.loads((SCHEMAS / "vectors/ids.json").read_text("utf-8"))
    layout = Layout(ids["layout"])
    for vector in ids["anonymous"]:
        assert anonymous(vector["due_at"], int(vector["random"], 16)) == vector["id"], vector
        assert layout.home(vector["id"]) == vector["home"], vector
    for vector in ids["keyed"]:
        assert keyed(vector["key"]) == vector["id"], vector
        assert layout.home(vector["id"]) == vector["home"], vector
