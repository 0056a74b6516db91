"""The full simulation: thousands of seeds, in one process for each core.

`make sim` runs it. DUELINE_SIM_SEEDS = how many (default 2,000); DUELINE_SIM_FROM = the first (default 0).
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from sim.script import crew, failure, report, script

CHUNK = 20
REPORTED = 5


def run(seed: int) -> tuple[int, str | None]:
    return seed, failure(script(seed), *crew(seed))


def main() -> int:
    first = int(os.environ.get("DUELINE_SIM_FROM", "0"))
    count = int(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DUELINE_SIM_SEEDS") or "2000")
    processes, started = min(os.cpu_count() or 1, 8), time.monotonic()
    failed: list[tuple[int, str]] = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done, (seed, found) in enumerate(pool.map(run, range(first, first + count), chunksize=CHUNK), 1):
            if found is not None:
                failed.append((seed, found))
            if done % 500 == 0:
                print(
                    f"  {done} of {count} seeds, {len(failed)} failed, {time.monotonic() - started:.0f} s",
                    flush=True,
                )
    for seed, found in failed[:REPORTED]:
        print(report(seed, found), file=sys.stderr)
    took = time.monotonic() - started
    seeds = ", ".join(str(seed) for seed, _ in failed) or "none"
    print(f"simulation: {count} seeds from {first} in {took:.0f} s on {processes} processes; failed: {seeds}")
    return 1 if failed else 0
