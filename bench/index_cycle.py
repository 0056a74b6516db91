"""Whether the due index stays small: jobs are put and fired, always so many pending: `python bench/index_cycle.py`.

Prints the bytes on disk and in the write buffers, the memory of the process and the processor time a job, at ten
points of the way. Time goes as at 200 jobs a second, so the fired memory (30 minutes, in generations) is full after
a quarter of it.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from pipeline.adapters.rocks_index import RocksIndex
from pipeline.core.keys import JOB
from pipeline.core.layout import Layout, default_layout
from pipeline.core.minting import Mint
from pipeline.ports import Action, Delta, Entry

JOBS, PENDING, BATCH, STEP_MS = 5_000_000, 100_000, 500, 5
START_MS = 1_800_000_000_000
VALUE = bytes(200)
PARTITION = 0


def memory() -> int:
    """Resident memory of this process, in MB."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def cycle(index: RocksIndex, layout: Layout, jobs: int) -> None:
    mint = Mint(layout, random.Random(1).getrandbits).mint
    begin, told = process_time(), jobs // 10
    for done in range(0, jobs, BATCH):
        put, fired = Delta(), Delta()
        for number in range(done, done + BATCH):
            due = START_MS + number * STEP_MS
            key = JOB + mint(due)[0].encode()
            put.put(Entry(key, due, number, Action.FIRE, VALUE, "default/0"), None)
        index.apply(PARTITION, put)
        now = START_MS + (done + BATCH - PENDING) * STEP_MS
        for entry in index.due(PARTITION, now, BATCH):
            fired.remove(entry)
            fired.ended[entry.record_key[2:]] = max(now, START_MS), b"fired"
        index.apply(PARTITION, fired)
        if (done + BATCH) % told == 0:
            spent = (process_time() - begin) / (done + BATCH) * 1e6
            print(
                f"{done + BATCH:>9,} jobs  pending {index.size(PARTITION):>7,}  index {index.footprint() / 1e6:6.1f} MB"
                f"  memory {memory()} MB  {spent:.1f} us a job",
                flush=True,
            )


def main() -> None:
    with TemporaryDirectory() as folder:
        index = RocksIndex(Path(folder) / "index")
        cycle(index, default_layout(), int(sys.argv[1]) if len(sys.argv) > 1 else JOBS)
        index.close()


if __name__ == "__main__":
    main()
