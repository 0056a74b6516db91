"""A storm: clients, dispatcher processes, and a nemesis that kills, freezes, stops and deceives them; then the check.

python tests/nemesis/storm.py --bootstrap 127.0.0.1:9092 --seed 7 --seconds 60
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
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
from nemesis.storm_faults import FAULTS, WIRE_FAULTS, Dispatcher, Nemesis, run_cli
from nemesis.storm_proxy import Wire, build_shim


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
    wires: bool = False,
    stopped: Callable[[], None] = lambda: None,
) -> Report:
    """One storm; what it found is in the report. `stopped` is called when only the reading is left to do."""
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
    faults = FAULTS if faults is None else faults
    if wires:
        shim, faults = build_shim(home), faults | WIRE_FAULTS
        for one in dispatchers:
            one.wire = Wire(bootstrap)
            one.wire.start()
            one.env |= one.wire.env(shim)
    nemesis = Nemesis(dispatchers, Random(seed + 1), faults, pace)
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
        _wait(ledger, listener, until, patience, nemesis.watch)
        report.quiet_s = time.monotonic() - calm
        for one in dispatchers:
            one.signal(signal.SIGTERM)
        for one in dispatchers:
            try:
                one.process.wait(40) if one.process else None
            except subprocess.TimeoutExpired:
                report.notes.append(f"{one.name} did not stop within 40 s of SIGTERM")
        stopped()
        listener.close()
        _decided(bootstrap, prefix, layout, report)
        check = Check(bootstrap, prefix, layout, ledger, now_ms() if report.quiet_s < patience else until)
        report.verdict = check.run()
        for text in nemesis.desertions:
            report.verdict.say("deserted", text)
    finally:
        closing.set()
        for one in (*dispatchers, *nemesis._clones):
            one.kill()
        (home / "nemesis.log").write_text("\n".join(nemesis.history))
        report.faults, report.history = nemesis.counts, nemesis.history
        if not keep:
            _delete(bootstrap, prefix)
    return report


def _wait(ledger: Ledger, listener: Listener, until: int, patience: float, watch: Callable[[], None]) -> None:
    """Until every command is answered, and nothing more has fired for some seconds after the last due time."""
    deadline, quiet, seen = time.monotonic() + patience, time.monotonic(), -1
    while time.monotonic() < deadline:
        watch()
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
    parser.add_argument("--wires", action="store_true", help="let connections hang and break as well")
    parser.add_argument("--keep", action="store_true", help="leave the topics")
    args = parser.parse_args()
    report = play(
        args.bootstrap,
        args.home,
        seed=args.seed,
        seconds=args.seconds,
        rate=args.rate,
        pace=args.pace,
        faults=dict.fromkeys(args.only, 1.0) or None,
        settings=dict(one.split("=", 1) for one in args.set),
        keep=args.keep,
        wires=args.wires,
    )
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
