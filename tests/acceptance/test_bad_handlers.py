"""Handlers of every bad kind in one real worker, among healthy ones: each has its outcome, and harms no other run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from integration.fleet import Eventually, Fleet, fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

APP = """
import asyncio, ctypes, os, signal, sys, threading, time
from dataclasses import dataclass
from pipeline import Dueline

app = Dueline()
C = ctypes.PyDLL(None)                      # its functions keep the interpreter lock

class Odd(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise ValueError("no text")

class Sticky:
    def __repr__(self):
        raise Odd

@dataclass
class Order:
    number: int

def bad(name, **options):
    return app.job(name, max_attempts=1, **options)

def note(ctx):
    with open("began", "a") as lines:
        lines.write(f"{ctx.job_id}\\n")

@app.job("healthy.thread")
def healthy(ctx):
    note(ctx)
    print("healthy")
    time.sleep(0.05)

@app.job("healthy.async")
async def healthy_async(ctx):
    note(ctx)
    print("healthy", file=sys.stderr)
    await asyncio.sleep(0.05)

@app.job("healthy.process", pool="process")
def healthy_process(ctx):
    note(ctx)
    print("healthy")

class Lazy(Exception):
    def __str__(self):
        time.sleep(8)                       # longer than a session
        return "at last"

@bad("lazy.thread")
def lazy(ctx):
    raise Lazy

@bad("close.thread")
def close(ctx):
    sys.stdout.close()
    sys.stderr.close()

@bad("close.process", pool="process")
def close_process(ctx):
    sys.stdout.close()
    sys.stderr.close()

@bad("junk.process", pool="process")
def junk_process(ctx):
    sys.stdout = sys.stderr = object()

@bad("junk.thread")
def junk(ctx):
    sys.stdout = sys.stderr = object()

@bad("forgotten.thread")
def forgotten(ctx):
    threading.Thread(target=threading.Event().wait).start()

@bad("forgotten.process", pool="process")
def forgotten_process(ctx):
    threading.Thread(target=threading.Event().wait).start()

@bad("base.thread")
def base(ctx):
    raise Odd("thread")

@bad("base.async")
async def base_async(ctx):
    raise Odd("async")

@bad("base.process", pool="process")
def base_process(ctx):
    raise Odd("process")

@bad("interrupt.thread")
def interrupt(ctx):
    raise KeyboardInterrupt

@bad("mute.thread")
def mute(ctx):
    raise Mute

@bad("cancelled.async")
async def cancelled(ctx):
    raise asyncio.CancelledError

@bad("deep.thread")
def deep(ctx):
    deep(ctx)

@bad("exit.thread")
def leave(ctx):
    sys.exit(3)

@bad("exit.async")
async def leave_async(ctx):
    await asyncio.create_task(asyncio.to_thread(sys.exit, 3))

@bad("exit.process", pool="process")
def leave_process(ctx):
    sys.exit(3)

@bad("_exit.process", pool="process")
def end(ctx):
    os._exit(7)

@bad("segfault.process", pool="process")
def segfault(ctx):
    ctypes.string_at(0)

@bad("killed.process", pool="process")
def killed(ctx):
    os.kill(os.getpid(), signal.SIGKILL)

@bad("leak.thread")
def leak(ctx):
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()

@bad("leak.process", pool="process")
def leak_process(ctx):
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()

@bad("object.thread")
def unserialisable(ctx):
    return object()

@bad("sticky.async")
async def sticky(ctx):
    return {"x": Sticky()}

@bad("object.process", pool="process")
def unserialisable_process(ctx):
    return {1, 2}

@bad("huge.thread")
def huge(ctx):
    return "x" * 50_000_000

@bad("huge.process", pool="process")
def huge_process(ctx):
    return "x" * 50_000_000

@bad("binary.thread")
def binary(ctx):
    for stream in (1, 2):
        os.write(stream, bytes(range(256)) * 40)

@bad("binary.process", pool="process")
def binary_process(ctx):
    for stream in (1, 2):
        os.write(stream, bytes(range(256)) * 40)

@bad("fork.thread")
def fork(ctx):
    return os.fork() and "parent"

@bad("fork.async")
async def fork_async(ctx):
    return os.fork() and "parent"

@bad("fork.process", pool="process")
def fork_process(ctx):
    return os.fork() and "parent"

@bad("fork-and-stay.thread")
def fork_and_stay(ctx):
    if os.fork() == 0:
        time.sleep(2)
    return "both"

@bad("lock.thread")
def lock(ctx, seconds):
    C.usleep(int(seconds * 1_000_000))
    return "kept"

@bad("lock.process", pool="process", timeout="1s")
def lock_process(ctx):
    C.usleep(60_000_000)

@bad("never.thread", timeout="1s")
def never(ctx):
    while True:
        time.sleep(0.1)

@bad("never.async", timeout="1s")
async def never_async(ctx):
    await asyncio.Event().wait()

@bad("never.process", pool="process", timeout="1s")
def never_process(ctx):
    while True:
        time.sleep(0.1)

@bad("stubborn.async", timeout="1s")
async def stubborn(ctx):
    while True:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            pass

@bad("names.thread")
def names(ctx, wanted):
    pass

@bad("model.thread")
def model(ctx, order: Order):
    pass

@bad("nowhere.thread")
def nowhere(ctx):
    ctx.produce("there-is-no-such-topic", b"x")

@bad("nowhere.process", pool="process")
def nowhere_process(ctx):
    ctx.produce("there-is-no-such-topic", b"x")

@bad("insists.thread")
def insists(ctx):
    try:
        ctx.produce("there-is-no-such-topic", b"x")
    except Exception:
        pass
    return "went on"

@bad("large.thread")
def large(ctx, topic):
    ctx.produce(topic, bytes(20_000_000))

@bad("own.thread")
def own(ctx, topic):
    ctx.produce(topic, b"x")

@bad("many.thread")
def many(ctx):
    for n in range(100_000):
        ctx.schedule("healthy.thread", in_="1h")

@bad("chatty.thread")
def chatty(ctx):
    for n in range(20_000):
        ctx.logger.info("line %d", n)
    ctx.progress(float("nan"), "x" * 1_000_000)
"""

DROPPED = "result_dropped"
EXPECTED: dict[str, tuple[str, str]] = {
    "lazy.thread": ("dead", "at last"),
    "close.thread": ("succeeded", "null"),
    "close.process": ("succeeded", "null"),
    "junk.process": ("succeeded", "null"),
    "forgotten.thread": ("succeeded", "null"),
    "forgotten.process": ("succeeded", "null"),
    "base.thread": ("dead", "Odd"),
    "base.async": ("dead", "Odd"),
    "base.process": ("dead", "Odd"),
    "interrupt.thread": ("dead", "KeyboardInterrupt"),
    "mute.thread": ("dead", "Mute"),
    "cancelled.async": ("dead", "CancelledError"),
    "deep.thread": ("dead", "RecursionError"),
    "exit.thread": ("dead", "SystemExit"),
    "exit.async": ("dead", "SystemExit"),
    "exit.process": ("dead", "SystemExit"),
    "_exit.process": ("dead", "ProcessDied: its process ended: exit code 7"),
    "segfault.process": ("dead", "ProcessDied: its process ended: killed by SIGSEGV"),
    "killed.process": ("dead", "ProcessDied: its process ended: killed by SIGKILL"),
    "leak.thread": ("succeeded", "null"),
    "leak.process": ("succeeded", "null"),
    "object.thread": ("succeeded", DROPPED),
    "sticky.async": ("succeeded", DROPPED),
    "object.process": ("succeeded", DROPPED),
    "huge.thread": ("succeeded", DROPPED),
    "huge.process": ("succeeded", DROPPED),
    "binary.thread": ("succeeded", "null"),
    "binary.process": ("succeeded", "null"),
    "fork.thread": ("succeeded", "parent"),
    "fork.async": ("succeeded", "parent"),
    "fork.process": ("succeeded", "parent"),
    "fork-and-stay.thread": ("succeeded", "both"),
    "lock.thread": ("succeeded", "kept"),
    "lock.process": ("dead", "TimedOut"),
    "never.thread": ("dead", "TimedOut"),
    "never.async": ("dead", "TimedOut"),
    "never.process": ("dead", "TimedOut"),
    "stubborn.async": ("dead", "TimedOut"),
    "names.thread": ("dead", "InvalidPayload: payload does not fit names.thread: missing"),
    "model.thread": ("dead", "InvalidPayload: order.number"),
    "nowhere.thread": ("dead", "there-is-no-such-topic"),
    "nowhere.process": ("dead", "there-is-no-such-topic"),
    "insists.thread": ("succeeded", "went on"),
    "large.thread": ("dead", "one run hands on"),
    "own.thread": ("dead", "is one of Dueline's own"),
    "many.thread": ("dead", "schedule"),
    "chatty.thread": ("succeeded", "null"),
}
"""Status, and a part of its error or result. A failure that is no verb is the only one: `max_attempts` is 1."""
HEALTHY = ("healthy.thread", "healthy.async", "healthy.process")
PAYLOADS: dict[str, Any] = {"lock.thread": {"seconds": 5}, "model.thread": {"number": "seven"}}
ENDED = ("succeeded", "dead", "cancelled", "stopped")


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def a_topic(shop: Fleet) -> str:
    """One that is not Dueline's."""
    admin = AdminClient({"bootstrap.servers": shop.settings.require_bootstrap(), "log_level": 0})
    name = f"out-{shop.settings.prefix}"
    (future,) = admin.create_topics([NewTopic(name, 1, 1)]).values()
    future.result(20)
    return name


def outcome(view: dict[str, Any]) -> tuple[str, str]:
    error = view["runs"][-1]["attempts"][-1]["error"]
    told = json.dumps(view["result"]) if error is None else f"{error['type']}: {error['message']}"
    return view["status"], told


def attempts(view: dict[str, Any]) -> list[tuple[int, int]]:
    return [(run["run"], attempt["attempt"]) for run in view["runs"] for attempt in run["attempts"]]


def ended(shop: Fleet, jobs: dict[str, str], eventually: Eventually, timeout: float) -> dict[str, Any]:
    """The jobs by id, once all have ended."""
    views: dict[str, Any] = {}

    def look() -> bool:
        for id_ in jobs.keys() - views.keys():
            view = shop.client.get(id_)
            if view["status"] not in ENDED:
                return False
            views[id_] = view
        return True

    try:
        eventually(look, timeout=timeout)
    except AssertionError:
        missing = {jobs[id_]: shop.client.get(id_)["status"] for id_ in jobs.keys() - views.keys()}
        raise AssertionError(f"did not end: {missing}") from None
    return views


def healthy(shop: Fleet, count: int) -> dict[str, str]:
    jobs = [{"handler": handler, "in_": f"{n * 300}ms"} for n in range(count) for handler in HEALTHY]
    refs = shop.client.schedule_many(jobs)
    return {ref.id: job["handler"] for ref, job in zip(refs, jobs, strict=True)}


def test_each_bad_handler_ends_as_it_should_and_harms_no_other_run(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    worker = shop.worker("--concurrency", "16")
    good = healthy(shop, 40)
    topics = {"large.thread": a_topic(shop), "own.thread": shop.settings.names.work("default")}
    payloads = PAYLOADS | {handler: {"topic": topic} for handler, topic in topics.items()}
    bad: dict[str, str] = {}
    for handler in EXPECTED:
        payload = payloads.get(handler, {})
        bad[shop.client.schedule(handler, payload, in_="1s").id] = handler
    views = ended(shop, good | bad, eventually, 90)
    wrong = {
        handler: (wanted, outcome(views[id_]))
        for id_, handler in bad.items()
        if not (
            outcome(views[id_])[0] == (wanted := EXPECTED[handler])[0] and wanted[1] in outcome(views[id_])[1]
        )
    }
    assert not wrong, "\n".join(
        f"{name}: wanted {wanted}, got {got}" for name, (wanted, got) in wrong.items()
    )
    assert {attempts(views[id_])[0] for id_ in good} == {(1, 1)}
    assert {len(attempts(view)) for view in views.values()} == {1}, "nothing was started twice"
    began = (shop.home / "began").read_text().split()
    assert sorted(began) == sorted(good)
    assert worker.poll() is None
    log = shop.log()
    assert log.count('"role": "worker", "slot": 0, "action": "assigned"') == 1, "no rebalance"
    assert '"action": "revoked"' not in log
    assert '"action": "lost"' not in log
    eventually(lambda: shop.log().count("healthy\n") >= len(good))  # what they print arrives
    last = shop.client.schedule("junk.thread", {}, in_="0s")
    ended(shop, {last.id: "junk.thread"}, eventually, 20)
    worker.terminate()
    assert worker.wait(60) == 0, "nothing of it is left to the end"


POISON = """
import ctypes, os, time
from pipeline import Dueline

app = Dueline()

@app.job("healthy.thread")
def healthy(ctx):
    time.sleep(0.05)

@app.job("healthy.async")
async def healthy_async(ctx):
    pass

@app.job("healthy.process", pool="process")
def healthy_process(ctx):
    pass

@app.job("_exit.thread", max_attempts=1)
def end(ctx):
    os._exit(7)

@app.job("segfault.async", max_attempts=1)
async def segfault(ctx):
    ctypes.string_at(0)
"""


def test_what_ends_its_worker_three_times_is_dead_and_everything_else_is_done(
    shop: Fleet, eventually: Eventually
) -> None:
    (shop.home / "shop.py").write_text(POISON)
    shop.dispatcher()
    shop.worker("--processes", "2", "--concurrency", "4")
    good: dict[str, str] = {}
    bad: dict[str, str] = {}
    views: dict[str, Any] = {}
    for name in ("_exit.thread", "segfault.async"):  # both at once could end an innocent run three times
        more = healthy(shop, 15)
        poison = {shop.client.schedule(name, {}, in_="1s").id: name}
        views |= ended(shop, more | poison, eventually, 80)
        good, bad = good | more, bad | poison
    assert {views[id_]["status"] for id_ in good} == {"succeeded"}
    for id_ in bad:
        status, told = outcome(views[id_])
        assert status == "dead"
        assert "ProcessDied: its process ended" in told, "the last attempt has a process of its own"
        assert attempts(views[id_])[-1] == (1, 3)
    # Whatever ran beside them when their worker ended ran once more, and nothing else did.
    again = [id_ for id_ in good if attempts(views[id_])[-1] != (1, 1)]
    deaths, places, ahead = 4, 4, 2 * 4  # twice what ends in 20 ms is started ahead of its place
    assert len(again) <= deaths * (places + ahead)
