"""The full simulations, of dispatchers and of workers' leases: thousands of seeds, in one process for each core.

`make sim` runs them. DUELINE_SIM_SEEDS = how many of the dispatchers' (default 2,000), and a quarter as many of the
leases'; DUELINE_SIM_FROM = the first (default 0).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from sim import lease_script, script

CHUNK = 20
REPORTED = 5
Told = tuple[int, str | None]


def run(seed: int) -> Told:
    return seed, script.failure(script.script(seed), *script.crew(seed))


def run_lease(seed: int) -> Told:
    return seed, lease_script.failure(lease_script.script(seed), seed)


def main() -> int:
    first = int(os.environ.get("DUELINE_SIM_FROM", "0"))
    count = int(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DUELINE_SIM_SEEDS") or "2000")
    processes = min(os.cpu_count() or 1, 8)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        failed = [
            _simulate("dispatchers", pool, run, range(first, first + count), script.report),
            _simulate("leases", pool, run_lease, range(first, first + (count + 3) // 4), lease_script.report),
        ]
    return 1 if any(failed) else 0


def _simulate(
    what: str,
    pool: ProcessPoolExecutor,
    play: Callable[[int], Told],
    seeds: range,
    report: Callable[[int, str], str],
) -> list[tuple[int, str]]:
    """What failed, reported."""
    failed, started = list[tuple[int, str]](), time.monotonic()
    for done, (seed, found) in enumerate(pool.map(play, seeds, chunksize=CHUNK), 1):
        if found is not None:
            failed.append((seed, found))
        if done % 500 == 0:
            took = time.monotonic() - started
            print(f"  {done} of {len(seeds)} seeds, {len(failed)} failed, {took:.0f} s", flush=True)
    for seed, found in failed[:REPORTED]:
        print(report(seed, found), file=sys.stderr)
    took = time.monotonic() - started
    names = ", ".join(str(seed) for seed, _ in failed) or "none"
    print(
        f"simulation of {what}: {len(seeds)} seeds from {seeds.start} in {took:.0f} s; failed: {names}",
        flush=True,
    )
    return failed
