"""A storm of workers: jobs of every pool, workers killed, frozen, restarted and scaled; then the check.

PYTHONPATH=tests python -m nemesis.worker_storm --bootstrap 127.0.0.1:9092 --seed 7 --seconds 60 [--postgres]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from integration.postgres import running_postgres
from nemesis.storm import _delete
from nemesis.storm_check import Row, read_all
from nemesis.storm_faults import run_cli
from nemesis.worker_check import FINAL, Check, Expected, Verdict, read_facts, states
from nemesis.worker_effects import Effects
from nemesis.worker_faults import FAULTS, PLACES, Life, Nemesis, Place

from pipeline import Dueline

TESTS = Path(__file__).parents[1]
PARTITIONS = 6
PATIENCE_S = 60
EDITED = {"seconds": 0, "fails": 0, "late": False, "child": False, "dead": False}
KINDS = {"storm.thread": 5, "storm.async": 4, "storm.process": 1, "storm.doomed": 1}


@dataclass(slots=True)
class Report:
    seed: int
    store: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    again: Verdict | None = None
    """The verdict after dead jobs were requeued."""
    quiet_s: float = 0.0
    refused_acks: int = 0
    """As the workers counted them."""
    wrong: list[str] = field(default_factory=list)

    def line(self) -> str:
        faults = f"{sum(self.faults.values())} faults {dict(self.faults)}"
        return (
            f"workers, seed {self.seed}, {self.store}: {faults} | {self.verdict.line()} | late acks refused"
            f" {self.refused_acks} | quiet after {self.quiet_s:.1f} s {self.wrong or ''}"
        )


def a_job(random: Random, failing: bool) -> tuple[dict[str, Any], Expected]:
    """A job, and what it is to come to. Without `failing` its handler does what it does once, but for the nemesis."""
    handler = random.choices(list(KINDS), list(KINDS.values()))[0]
    fails, late, child = random.choice((0, 0, 0, 1, 2)), random.random() < 0.5, random.random() < 0.3
    if not failing:
        handler, fails = "storm.async" if handler == "storm.doomed" else handler, 0
    seconds = random.choice((0, 0, 0.2, 1, 2, 3))
    payload = {"seconds": seconds, "fails": fails, "late": late, "child": child, "dead": False}
    expected = Expected("succeeded", 1, child)
    if handler == "storm.doomed":
        at_once = random.random() < 0.5
        payload |= {"fails": 0 if at_once else 99, "dead": at_once, "child": False}
        expected = Expected("dead", int(at_once or late))
    return {"handler": handler, "payload": payload, "in_": f"{random.randrange(2_000)}ms"}, expected


class Creator(threading.Thread):
    """Creates jobs, some every second, and knows what each is to come to."""

    def __init__(self, client: Dueline, random: Random, rate: int, failing: bool) -> None:
        super().__init__(daemon=True)
        self.expected: dict[str, Expected] = {}
        self.finish = threading.Event()
        self._client, self._random, self._rate, self._failing = client, random, rate, failing

    def run(self) -> None:
        while not self.finish.wait(0.5):
            made = [a_job(self._random, self._failing) for _ in range(self._rate // 2)]
            refs = self._client.schedule_many(job for job, _ in made)
            for ref, (_, expected) in zip(refs, made, strict=True):
                self.expected[ref.id] = expected


class Storm:
    """One storm on one store."""

    def __init__(self, bootstrap: str, home: Path, store: str, *, seed: int, guarded: bool = True) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.bootstrap, self.home, self.prefix = bootstrap, home, f"workers{seed}x{os.getpid()}"
        self.effects = Effects(store)
        self.effects.create()
        plain = {
            name: value for name, value in os.environ.items() if not name.startswith(("DUELINE_", "KAFKA_"))
        }
        self.env = plain | {
            "DUELINE_BOOTSTRAP_SERVERS": bootstrap,
            "DUELINE_PREFIX": self.prefix,
            "DUELINE_STATE_DIR": str(home / "state"),
            "DUELINE_METRICS_PORT": "0",
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
            "STORM_EFFECTS": store,
            "STORM_SINK": "on" if guarded else "off",
        }
        made = run_cli(self.env, "topics", "create", "--queue", f"default:{PARTITIONS}", "--json")
        assert made.returncode == 0, made.stderr
        self.client = Dueline(bootstrap_servers=bootstrap, prefix=self.prefix, state_dir=str(home / "client"))
        self.places = [Place(f"w{n}", self.env, home) for n in range(PLACES)]
        self.random = Random(seed)
        self._log = (home / "dispatcher.log").open("wb")
        self.dispatcher = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "dispatcher"],
            env=self.env,
            cwd=TESTS,
            stdout=self._log,
            stderr=self._log,
        )

    @property
    def lives(self) -> list[Life]:
        return [life for place in self.places for life in place.lives]

    def start(self, count: int) -> None:
        """So many workers, and waits until all of them listen."""
        for place in self.places[:count]:
            place.start()
        deadline = time.monotonic() + 30
        while not all(place.life.process_id() for place in self.places[:count]):
            assert time.monotonic() < deadline, "workers did not start"
            time.sleep(0.05)

    def rows(self, topic: str) -> list[Row]:
        return read_all(self.bootstrap, f"{self.prefix}.{topic}.default", PARTITIONS)

    def open_jobs(self, expected: dict[str, Expected]) -> int:
        """How many have not ended, those that handlers scheduled included."""
        acks = self.rows("acks")
        ended = states(acks)
        runs = Counter(row.key for row in self.rows("work"))
        acked = Counter(row.key.split("/")[1] for row in acks if row.key.startswith("t/"))
        return sum(
            ended.get(occurrence) not in FINAL or acked[occurrence] < runs[occurrence]
            for occurrence in runs.keys() | expected.keys()
        )

    def wait(self, expected: dict[str, Expected], wrong: list[str], watch: Callable[[], None]) -> float:
        began = time.monotonic()
        quiet = 0
        while quiet < 3 and time.monotonic() - began < PATIENCE_S:
            watch()
            quiet = quiet + 1 if self.open_jobs(expected) == 0 else 0
            time.sleep(0.3)
        if quiet < 3:
            wrong.append(f"{self.open_jobs(expected)} jobs did not end within {PATIENCE_S} s")
        return time.monotonic() - began

    def check(self, expected: dict[str, Expected]) -> Verdict:
        facts = read_facts(self.bootstrap, self.prefix, PARTITIONS, self.effects)
        return Check(facts, expected, self.lives).run()

    def events(self, action: str) -> int:
        return sum(life.log.read_bytes().count(b'"action": "%s"' % action.encode()) for life in self.lives)

    def close(self, *, keep: bool) -> None:
        for place in self.places:
            place.kill() if place.lives else None
        self.dispatcher.send_signal(signal.SIGTERM)
        try:
            self.dispatcher.wait(20)
        except subprocess.TimeoutExpired:
            self.dispatcher.kill()
            self.dispatcher.wait()
        self._log.close()
        self.client.close()
        if not keep:
            _delete(self.bootstrap, self.prefix)


def play(
    bootstrap: str,
    home: Path,
    store: str,
    *,
    seed: int,
    seconds: float,
    rate: int = 12,
    pace: float = 2.0,
    faults: dict[str, int] | None = None,
    guarded: bool = True,
    failing: bool = True,
    enough: Callable[[Storm], bool] | None = None,
    keep: bool = False,
) -> Report:
    """One storm; what it found is in the report. `enough` ends it before its time."""
    storm = Storm(bootstrap, home, store, seed=seed, guarded=guarded)
    report = Report(seed, storm.effects.kind)
    creator = Creator(storm.client, Random(seed + 1), rate, failing)
    nemesis = Nemesis(storm.places, storm.random, FAULTS if faults is None else faults, pace)
    try:
        storm.start(PLACES)
        creator.start()
        nemesis.rage(seconds, (lambda: enough(storm)) if enough is not None else (lambda: False))
        creator.finish.set()
        creator.join(30)
        nemesis.calm()
        report.quiet_s = storm.wait(creator.expected, report.wrong, nemesis.watch)
        report.verdict = storm.check(creator.expected)
        if failing:
            report.again = requeued(storm, creator.expected, report.wrong, nemesis.watch)
        _leave(storm, report)
        report.refused_acks = storm.events("offer_ignored") + storm.events("fenced_ack")
    finally:
        creator.finish.set()
        report.faults = nemesis.counts
        report.wrong += nemesis.wrong
        (home / "nemesis.log").write_text("\n".join(nemesis.history))
        storm.close(keep=keep)
    return report


def _leave(storm: Storm, report: Report) -> None:
    for place in storm.places:
        place.terminate()
    deadline = time.monotonic() + 40
    for place in storm.places:
        while place.lives and not place.ended() and time.monotonic() < deadline:
            time.sleep(0.05)
        if place.lives and place.life.asked_at and not place.life.left_well():
            report.wrong.append(f"{place.name} left with {place.life.ended}")


def requeued(
    storm: Storm, expected: dict[str, Expected], wrong: list[str], watch: Callable[[], None]
) -> Verdict:
    """Half of the dead once more as they are, half with a payload with which they can succeed."""
    dead = sorted(id_ for id_, one in expected.items() if one.state == "dead")
    plain, edited = dead[::2], dead[1::2]
    for ids, words in ((plain, ()), (edited, ("--payload", json.dumps(EDITED)))):
        if not ids:
            continue
        done = run_cli(storm.env, "dead", "requeue", *ids, *words, "--json")
        said = json.loads(done.stdout) if done.returncode == 0 else {}
        if said.get("requeued") != len(ids):
            wrong.append(f"requeue of {len(ids)}: {done.returncode} {said} {done.stderr[-300:]!r}")
    after = expected | {id_: Expected("succeeded", 1) for id_ in edited}
    storm.wait(after, wrong, watch)
    return storm.check(after)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=12)
    parser.add_argument("--pace", type=float, default=2.0)
    parser.add_argument("--home", type=Path, default=Path("worker-storm-home"))
    parser.add_argument("--postgres", action="store_true", help="effects in a PostgreSQL started for it")
    parser.add_argument("--plain", action="store_true", help="no sink: the negative control")
    parser.add_argument("--only", action="append", default=[], choices=list(FAULTS))
    parser.add_argument("--keep", action="store_true", help="leave the topics")
    args = parser.parse_args()
    with ExitStack() as stack:
        args.home.mkdir(parents=True, exist_ok=True)
        store = stack.enter_context(running_postgres()) if args.postgres else str(args.home / "effects.db")
        report = play(
            args.bootstrap,
            args.home,
            store,
            seed=args.seed,
            seconds=args.seconds,
            rate=args.rate,
            pace=args.pace,
            faults=dict.fromkeys(args.only, 1) or None,
            guarded=not args.plain,
            failing=not args.plain,
            keep=args.keep,
        )
    print(report.line())
    for verdict in (report.verdict, report.again or Verdict()):
        for kind, found in verdict.found.items():
            print(*(f"  {kind}: {text}" for text in found[:8]), f"  {kind}: {len(found)} in all", sep="\n")
    if report.again is not None:
        print(f"  after requeue: {report.again.line()}")
    return 1 if report.wrong or report.verdict.found or (report.again and report.again.found) else 0


if __name__ == "__main__":
    sys.exit(main())
