"""What a record costs beside the bare library: `python bench/codec.py` prints one JSON object.

Microseconds for one Run with a payload of 200 bytes, best of several bursts, and each as a ratio to fastavro
reading or writing the same plain value with the same schema in the same run (below 1 = quicker).
`encode`, `decode`, `peek` are of the codec; `record` is all that `schedule_many` does with one job before it is handed
to the producer (checks, JSON, id, home, encoding), `singly` the same the way of a single job. `ack` has the same of one
Ack of a plain success, and what a worker's writer needs for the two of each run: `started`, `terminal`.
"""

from __future__ import annotations

import json
import random
import timeit
from collections.abc import Callable
from io import BytesIO
from typing import Any

from fastavro import schemaless_reader, schemaless_writer

from pipeline import codec
from pipeline.client.recorder import Recorder
from pipeline.client.request import Requests
from pipeline.codec.registry import FRAME, Codec
from pipeline.core.job import PAYLOAD_LIMIT, Ack, AckState, Run
from pipeline.core.layout import default_layout
from pipeline.core.minting import Mint
from pipeline.core.token import make_token

BURST, BURSTS = 500, 60


def microseconds(call: Callable[[], Any]) -> float:
    return round(min(timeit.repeat(call, number=BURST, repeat=BURSTS)) / BURST * 1e6, 2)


def bare_write(schema: Any, plain: Any) -> bytes:
    body = BytesIO()
    schemaless_writer(body, schema, plain)
    return body.getvalue()


def creating(now: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """(a job among many, a job alone), each up to its record."""
    layout, bits = default_layout(), random.Random(1).getrandbits
    requests = Requests(
        now=lambda: now, random80=lambda: bits(80), payload_limit=PAYLOAD_LIMIT, default_queue="default"
    )
    many = Recorder(requests, "jobs", Mint(layout, bits), lambda queue: None)
    job = {"handler": "email.send", "payload": {"to": "a@example.com", "text": "x" * 166}, "in_": 600}

    def alone() -> tuple[int, bytes]:
        run = requests.run(job)
        return layout.home(run.job_id), codec.RUN.encode(run)

    return lambda: many.record(job, now), alone


JOB_ID = "j01m8mbm82y09qgb0vz64w4hk7d"
NOW = 1_790_000_000_000
RUN = Run(
    job_id=JOB_ID,
    occurrence_id=JOB_ID,
    due_at=NOW,
    run=1,
    queue="default",
    handler="email.send",
    created_at=NOW,
    nominal_at=NOW,
    idempotency_key=JOB_ID,
    payload=b"x" * 200,
)
ACK = Ack(
    job_id=JOB_ID,
    occurrence_id=JOB_ID,
    run=1,
    attempt=1,
    token=make_token(0, 1, 7, 1),
    worker="worker.ab12cd34.0",
    handler="email.send",
    state=AckState.SUCCEEDED,
    at=NOW + 400,
    work_offset=123_456,
    started_at=NOW + 123,
)


def beside_fastavro(which: Codec[Any], data: bytes) -> tuple[float, float]:
    """Microseconds of the bare library: (reading, writing) the plain value of `data`."""
    body = data[FRAME:]
    plain = schemaless_reader(BytesIO(body), which.schema, None)
    read = microseconds(lambda: schemaless_reader(BytesIO(body), which.schema, None))
    return read, microseconds(lambda: bare_write(which.schema, plain))


def report(read: float, write: float, ours: dict[str, tuple[float, float]]) -> dict[str, Any]:
    shown = {name: {"us": us, "ratio": round(us / bare, 2)} for name, (us, bare) in ours.items()}
    return {"bare_read_us": read, "bare_write_us": write, **shown}


def of_runs() -> dict[str, Any]:
    data = codec.RUN.encode(RUN)
    read, write = beside_fastavro(codec.RUN, data)
    record, singly = creating(NOW)
    ours = {
        "encode": (microseconds(lambda: codec.RUN.encode(RUN)), write),
        "decode": (microseconds(lambda: codec.RUN.decode(data)), read),
        "peek": (microseconds(lambda: codec.peek_run(data)), read),
        "record": (microseconds(record), write),
        "singly": (microseconds(singly), write),
    }
    return report(read, write, ours)


def of_acks() -> dict[str, Any]:
    data, writer = codec.ACK.encode(ACK), codec.AckWriter(ACK.worker)
    read, write = beside_fastavro(codec.ACK, data)
    opening = writer.opening(RUN, ACK.attempt, ACK.token)

    def started() -> bytes:
        begun = writer.opening(RUN, ACK.attempt, ACK.token)
        return writer.write(begun, AckState.STARTED, ACK.at, ACK.work_offset)

    def terminal() -> bytes:
        return writer.write(opening, ACK.state, ACK.at, ACK.work_offset, ACK.started_at)

    assert terminal() == data
    ours = {
        "encode": (microseconds(lambda: codec.ACK.encode(ACK)), write),
        "decode": (microseconds(lambda: codec.ACK.decode(data)), read),
        "started": (microseconds(started), write),
        "terminal": (microseconds(terminal), write),
    }
    return report(read, write, ours)


if __name__ == "__main__":
    print(json.dumps({**of_runs(), "ack": of_acks()}))
