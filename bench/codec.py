"""What a record costs beside the bare library: `python bench/codec.py` prints one JSON object.

Microseconds for one Run with a payload of 200 bytes, best of several bursts, and each as a ratio to fastavro
reading or writing the same plain value with the same schema in the same run (below 1 = quicker).
`encode`, `decode`, `peek` are of the codec; `record` is all that `schedule_many` does with one job before it is handed
to the producer (checks, JSON, id, home, encoding), `singly` the same the way of a single job.
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
from pipeline.codec.registry import FRAME
from pipeline.core.job import PAYLOAD_LIMIT, Run
from pipeline.core.layout import default_layout
from pipeline.core.minting import Mint

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


def main() -> None:
    job_id = "j01m8mbm82y09qgb0vz64w4hk7d"
    now = 1_790_000_000_000
    run = Run(
        job_id=job_id,
        occurrence_id=job_id,
        due_at=now,
        run=1,
        queue="default",
        handler="email.send",
        created_at=now,
        nominal_at=now,
        idempotency_key=job_id,
        payload=b"x" * 200,
    )
    data, schema = codec.RUN.encode(run), codec.RUN.schema
    body = data[FRAME:]
    plain = schemaless_reader(BytesIO(body), schema, None)
    read = microseconds(lambda: schemaless_reader(BytesIO(body), schema, None))
    write = microseconds(lambda: bare_write(schema, plain))
    record, singly = creating(now)
    ours = {
        "encode": (microseconds(lambda: codec.RUN.encode(run)), write),
        "decode": (microseconds(lambda: codec.RUN.decode(data)), read),
        "peek": (microseconds(lambda: codec.peek_run(data)), read),
        "record": (microseconds(record), write),
        "singly": (microseconds(singly), write),
    }
    report = {name: {"us": us, "ratio": round(us / bare, 2)} for name, (us, bare) in ours.items()}
    print(json.dumps({"bare_read_us": read, "bare_write_us": write, **report}))


if __name__ == "__main__":
    main()
