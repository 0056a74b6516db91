"""A storm: clients, dispatcher processes, and a nemesis that kills, freezes, stops and deceives them; then the check.

python tests/nemesis/storm.py --bootstrap 127.0.0.1:9092 --seed 7 --seconds 60
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka.admin import AdminClient
from nemesis import storm_wire as wire
from nemesis.storm_check import Check, Verdict, undecided
from nemesis.storm_clients import Client, Ledger, Listener, Storm, now_ms

ROOT = Path(__file__).parents[2]
FAULTS = {
    "kill": 5,
    "term": 2,
    "freeze": 5,
    "freeze long": 3,
    "wipe index": 2,
    "old index": 2,
    "kill child": 2,
    "kill all": 0.7,
    "freeze all": 0.7,
    "clone": 0.7,
}


def run_cli(
    env: dict[str, str], *argv: str, stdin: bytes | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *argv],
        env=env,
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        timeout=timeout,
    )


@dataclass(slots=True)
class Dispatcher:
    """A dispatcher process of the storm, started again and again."""

    name: str
    env: dict[str, str]
    log: Path
    argv: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    frozen: bool = False

    @property
    def state(self) -> Path:
        return Path(self.env["DUELINE_STATE_DIR"])

    def start(self) -> None:
        if self.alive():
            return
        with self.log.open("ab") as out:
            out.write(b"--- start %s %r\n" % (datetime.now(UTC).isoformat().encode(), self.argv))
            out.flush()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "dispatcher", *self.argv],
                env=self.env,
                cwd=ROOT,
                stdout=out,
                stderr=out,
            )

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def children(self) -> list[int]:
        if not self.alive():
            return []
        assert self.process is not None
        pid = self.process.pid
        try:
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    def signal(self, number: int) -> None:
        """To the process and its children."""
        if not self.alive():
            return
        assert self.process is not None
        for pid in [self.process.pid, *self.children()]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(20)
        self.frozen = False


class Nemesis:
    """Strikes by chance, from one seed."""

    def __init__(
        self, dispatchers: list[Dispatcher], random: Random, faults: dict[str, float], pace: float
    ) -> None:
        self.dispatchers, self.random, self.faults, self.pace = dispatchers, random, faults, pace
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = 0
        self._clones: list[Dispatcher] = []

    def rage(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        strike = time.monotonic() + 2
        while time.monotonic() < end:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            if now >= strike:
                self._strike()
                strike = now + self.random.uniform(0.3, 2 * self.pace)
            time.sleep(0.02)

    def calm(self) -> None:
        """Everybody runs again."""
        self._due.clear()
        for clone in self._clones:
            clone.kill()
        for dispatcher in self.dispatchers:
            dispatcher.signal(signal.SIGCONT)
            dispatcher.frozen = False
            dispatcher.start()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._turn += 1
        heapq.heappush(self._due, (time.monotonic() + seconds, self._turn, action))

    def _strike(self) -> None:
        fault = self.random.choices(list(self.faults), list(self.faults.values()))[0]
        standing = [one for one in self.dispatchers if one.alive() and not one.frozen]
        if not standing:
            return
        victim = self.random.choice(standing)
        if fault == "kill child":
            standing = [one for one in standing if one.children()]
            if not standing:
                return
            victim = standing[0]
        self.counts[fault] += 1
        self.history.append(f"{datetime.now(UTC).isoformat()} {fault} {victim.name}")
        getattr(self, "_" + fault.replace(" ", "_"))(victim)

    def _again(self, victim: Dispatcher, longest: float = 5) -> None:
        self._later(self.random.choice((0, 0.3, self.random.uniform(0, longest))), victim.start)

    def _kill(self, victim: Dispatcher) -> None:
        victim.kill()
        self._again(victim)

    def _kill_all(self, _victim: Dispatcher) -> None:
        for one in self.dispatchers:
            self._kill(one)

    def _term(self, victim: Dispatcher) -> None:
        assert victim.process is not None
        os.kill(victim.process.pid, signal.SIGTERM)
        process, asked = victim.process, time.monotonic()

        def look() -> None:
            if process.poll() is None:
                if time.monotonic() - asked > 45 and not victim.frozen:
                    self.counts["SIGTERM ignored"] += 1
                    victim.kill()
                self._later(0.1, look)
            else:
                self._again(victim, 2)

        look()

    def _freeze(self, victim: Dispatcher, seconds: float | None = None) -> None:
        victim.frozen = True
        victim.signal(signal.SIGSTOP)
        process = victim.process

        def thaw() -> None:
            if victim.process is process:
                victim.signal(signal.SIGCONT)
                victim.frozen = False

        self._later(self.random.choice((0.5, 3.5, 5, 7)) if seconds is None else seconds, thaw)

    def _freeze_long(self, victim: Dispatcher) -> None:
        self._freeze(victim, self.random.uniform(10.2, 13))

    def _freeze_all(self, _victim: Dispatcher) -> None:
        for one in self.dispatchers:
            if one.alive() and not one.frozen:
                self._freeze(one, self.random.uniform(3, 7))

    def _kill_child(self, victim: Dispatcher) -> None:
        os.kill(self.random.choice(victim.children()), signal.SIGKILL)

    def _indexes(self, victim: Dispatcher) -> list[Path]:
        return [path for path in victim.state.glob("dispatcher/*/index") if path.is_dir()]

    def _wipe_index(self, victim: Dispatcher) -> None:
        for one in self.dispatchers:
            if one.state == victim.state:
                one.kill()
                self._again(one, 2)
        for index in self._indexes(victim):
            shutil.rmtree(index)

    def _old_index(self, victim: Dispatcher) -> None:
        """Put back what was kept the last time, keep what is there now."""
        for one in self.dispatchers:
            if one.state == victim.state:
                one.kill()
                self._again(one, 2)
        for index in self._indexes(victim):
            kept, now = index.with_name("kept"), index.with_name("now")
            shutil.rmtree(now, ignore_errors=True)
            shutil.copytree(index, now)
            if kept.exists():
                shutil.rmtree(index)
                kept.rename(index)
                self.counts["old index put back"] += 1
            now.rename(kept)

    def _clone(self, victim: Dispatcher) -> None:
        """The same state directory twice, as after copying a machine."""
        victim.kill()
        copy = victim.state.with_name(f"{victim.state.name}-clone{len(self._clones)}")
        shutil.copytree(victim.state, copy)
        clone = Dispatcher(
            f"{victim.name}-clone",
            victim.env | {"DUELINE_STATE_DIR": str(copy)},
            victim.log.with_suffix(".clone.log"),
            ("--slot", "0"),
        )
        self._clones.append(clone)
        victim.start()
        clone.start()
        self._later(self.random.uniform(6, 15), clone.kill)


@dataclass(slots=True)
class Report:
    seed: int
    seconds: float
    faults: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    history: list[str] = field(default_factory=list)
    quiet_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    def bad(self) -> dict[str, int]:
        return {kind: len(found) for kind, found in self.verdict.found.items()}

    def line(self) -> str:
        late = sorted(lateness for lateness, _ in self.verdict.lateness) or [0]
        return (
            f"seed {self.seed}: {sum(self.faults.values())} faults {dict(self.faults)} | jobs {self.verdict.jobs}"
            f" fired {self.verdict.fired} commands {sum(self.verdict.outcomes.values())}"
            f" {dict(self.verdict.outcomes)} | bad {self.bad()} | lateness p50 {statistics.median(late):.0f}"
            f" p99 {late[int(len(late) * 0.99) - 1]} worst {late[-1]} ms | quiet after {self.quiet_s:.1f} s"
            f" | dead {dict(self.verdict.dead)} | {self.notes}"
        )


def create_lines(env: dict[str, str], ledger: Ledger, random: Random, closing: threading.Event) -> None:
    """Jobs through the command line, while the storm lasts."""
    while not closing.wait(random.uniform(2, 5)):
        lines, body = {}, []
        for _ in range(300):
            marker, due = f"{random.getrandbits(64):x}", now_ms() + random.randrange(-500, 6_000)
            lines[marker] = due
            at = datetime.fromtimestamp(due / 1000, UTC).isoformat(timespec="milliseconds")
            body.append(json.dumps({"handler": "storm.line", "payload": {"m": marker}, "at": at}))
        done = run_cli(env, "job", "create", "--file", "-", "--json", stdin="\n".join(body).encode())
        if done.returncode == 0 and json.loads(done.stdout)["accepted"] == len(lines):
            ledger.lines.update(lines)
        else:
            ledger.unsure_lines |= lines.keys()
            print(
                "job create --file:", done.returncode, done.stdout[-300:], done.stderr[-300:], file=sys.stderr
            )


def play(
    bootstrap: str,
    home: Path,
    *,
    seed: int,
    seconds: float,
    rate: float = 60,
    clients: int = 3,
    pace: float = 1.2,
    faults: dict[str, float] | None = None,
    processes: int = 2,
    settings: dict[str, str] | None = None,
    patience: float = 60,
    keep: bool = False,
) -> Report:
    """One storm; what it found is in the report."""
    wire.verify_vectors()
    random, prefix = Random(seed), f"storm{seed}x{os.getpid()}"
    home.mkdir(parents=True, exist_ok=True)
    base = {name: value for name, value in os.environ.items() if not name.startswith(("DUELINE_", "KAFKA_"))}
    base |= {"DUELINE_BOOTSTRAP_SERVERS": bootstrap, "DUELINE_PREFIX": prefix, "DUELINE_METRICS_PORT": "0"}
    base |= {"DUELINE_STATE_DIR": str(home / "client")} | (settings or {})
    made = run_cli(
        base, "topics", "create", "--queue", "default:4", "--queue", "slow:2", "--shards", "2", "--ring", "3",
        "--bucket-width", "1s", "--json",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    layout, ledger, report = wire.Layout(json.loads(made.stdout)["layout"]), Ledger(), Report(seed, seconds)
    dispatchers = [
        Dispatcher(name, base | {"DUELINE_STATE_DIR": str(home / state)}, home / f"{name}.log", argv)
        for name, state, argv in (
            ("d0", "a", ()),
            ("d1", "a", ()),
            ("d2", "b", ("--processes", str(processes))),
        )
    ]
    nemesis = Nemesis(dispatchers, Random(seed + 1), FAULTS if faults is None else faults, pace)
    storms = [
        Storm(Client(bootstrap, prefix, layout, ledger, Random(seed * 100 + n)), rate) for n in range(clients)
    ]
    listener = Listener(bootstrap, prefix, Client(bootstrap, prefix, layout, ledger, Random(seed * 100 + 99)))
    closing = threading.Event()
    liner = threading.Thread(target=create_lines, args=(base, ledger, random, closing), daemon=True)
    try:
        for thread in (*dispatchers, *storms, listener, liner):
            thread.start()
        nemesis.rage(seconds)
        listener.finishing = False
        for storm in storms:
            storm.close()
        closing.set()
        liner.join(90)
        nemesis.calm()
        calm = time.monotonic()
        until = now_ms() + 9_000
        listener.client.producer.flush(30)
        _wait(ledger, listener, until, patience)
        report.quiet_s = time.monotonic() - calm
        for one in dispatchers:
            one.signal(signal.SIGTERM)
        for one in dispatchers:
            try:
                one.process.wait(40) if one.process else None
            except subprocess.TimeoutExpired:
                report.notes.append(f"{one.name} did not stop within 40 s of SIGTERM")
        listener.close()
        _decided(bootstrap, prefix, layout, report)
        check = Check(bootstrap, prefix, layout, ledger, now_ms() if report.quiet_s < patience else until)
        report.verdict = check.run()
    finally:
        closing.set()
        for one in (*dispatchers, *nemesis._clones):
            one.kill()
        (home / "nemesis.log").write_text("\n".join(nemesis.history))
        report.faults, report.history = nemesis.counts, nemesis.history
        if not keep:
            _delete(bootstrap, prefix)
    return report


def _wait(ledger: Ledger, listener: Listener, until: int, patience: float) -> None:
    """Until every command is answered, and nothing more has fired for some seconds after the last due time."""
    deadline, quiet, seen = time.monotonic() + patience, time.monotonic(), -1
    while time.monotonic() < deadline:
        missing = [
            id_ for id_, sent in ledger.commands.items() if sent.places and id_ not in listener.answered
        ]
        count = len(listener.fired)
        if count != seen or missing:
            quiet, seen = time.monotonic(), count
        if now_ms() > until and time.monotonic() - quiet > 4 and not missing:
            return
        time.sleep(0.2)


def _decided(bootstrap: str, prefix: str, layout: wire.Layout, report: Report) -> None:
    topics = {f"{prefix}.jobs": layout.partitions, f"{prefix}.events": layout.partitions, f"{prefix}.dead": 1}
    topics |= {f"{prefix}.work.{queue}": count for queue, count in layout.queues.items()}
    for _ in range(60):
        left = undecided(bootstrap, topics)
        if not left:
            return
        time.sleep(0.5)
    report.notes.append(f"transactions still open: {left}")


def _delete(bootstrap: str, prefix: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    names = [name for name in admin.list_topics(timeout=10).topics if name.startswith(prefix + ".")]
    for future in admin.delete_topics(names).values():
        future.exception(30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=60)
    parser.add_argument("--pace", type=float, default=1.2)
    parser.add_argument("--home", type=Path, default=Path("storm-home"))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--only", action="append", default=[], choices=list(FAULTS))
    parser.add_argument("--keep", action="store_true", help="leave the topics")
    args = parser.parse_args()
    try:
        report = play(
            args.bootstrap,
            args.home,
            seed=args.seed,
            seconds=args.seconds,
            rate=args.rate,
            pace=args.pace,
            faults={name: 1 for name in args.only} or None,
            settings=dict(one.split("=", 1) for one in args.set),
            keep=args.keep,
        )
    except Exception:
        traceback.print_exc()
        return 2
    print(report.line())
    for kind, found in report.verdict.found.items():
        for text in found[:8]:
            print(f"  {kind}: {text}")
        if len(found) > 8:
            print(f"  {kind}: … {len(found)} in all")
    for lateness, name in sorted(report.verdict.lateness, reverse=True)[:3]:
        print(f"  late: {lateness} ms {name}")
    return 1 if report.bad() else 0


if __name__ == "__main__":
    sys.exit(main())
