"""The night from the first process to the report: schedule, wait, kill one worker at the worst moment, read
back."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from pipeline import Dueline
from pipeline.adapters.kafka_admin import ensure_topics, load_layout
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.config import Settings
from pipeline.core.times import format_instant
from pipeline.dev.demo import store as stores
from pipeline.dev.demo.cast import Cast
from pipeline.dev.demo.evidence import read_topics
from pipeline.dev.demo.handlers import Stage
from pipeline.dev.demo.mailbox import Mailbox
from pipeline.dev.demo.report import Kill, Observed, report
from pipeline.dev.demo.screen import Counts, Screen
from pipeline.dev.demo.script import LEAD_MS, NIGHT_MS, Script, requests
from pipeline.dev.demo.smtp import MailServer
from pipeline.dev.demo.steps import step
from pipeline.dev.demo.watch import Tally, store_ahead_ms, wall_ms, watches

PATIENCE_MS = 30_000
"""Since anything last succeeded: more than a takeover takes, even with a transaction left open."""
TICK_S = 0.1


def play(script: Script, *, told: str | None, keep: bool, screen: Screen) -> dict[str, Any]:
    """Play it and return the report (schemas/cli/demo.json). Nothing is left behind, however it ends, but
    what `keep` asks for. Raises what the parts raise: StoreUnreachable, DuelineError with a child's last
    words."""
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(orderly_signals())
        directory = stack.enter_context(_directory(keep))
        opened = stack.enter_context(stores.opened(told, directory, screen, keep=keep))
        settings = opened.settings
        with step("topics"):
            ensure_topics(settings)
        found = Stagehand(script, settings, directory, screen, stack).run()
        return {
            **found,
            "store": opened.described(),
            "night": {
                "from": _instant(script.night.starts),
                "to": _instant(script.night.ends),
                "compressed_to_ms": NIGHT_MS,
            },
            "kept": str(directory) if keep else None,
            "elapsed_ms": round((time.monotonic() - began) * 1000),
        }


class Stagehand:
    """Puts the parts together for one night; what it opens is closed with `stack`."""

    def __init__(
        self, script: Script, settings: Settings, directory: Path, screen: Screen, stack: ExitStack
    ) -> None:
        self._script = script
        self._settings = settings
        self._screen = screen
        self._stack = stack
        self._signal_file = directory / "mail_sent"
        self._mailbox = stack.enter_context(closing(Mailbox(directory / "mailbox.sqlite", create=True)))
        server = stack.enter_context(MailServer(self._mailbox))
        Stage(
            smtp_port=server.port,
            mailbox=str(directory / "mailbox.sqlite"),
            victim=script.victim,
            signal_file=str(self._signal_file),
        ).publish(directory / "stage.json")
        self._cast = Cast(settings, directory, directory / "stage.json")
        stack.callback(self._cast.stop)
        self._kill: Kill | None = None

    def run(self) -> dict[str, Any]:
        """Start the processes, play the night, read everything back."""
        reader, ahead = self._connected()  # before the processes start and want the machine for themselves
        self._cast.start()
        tally = Tally(ahead)
        with ExitStack() as watching:
            with step("watching the topics"):
                for watch in watches(self._settings, reader, tally):
                    watching.enter_context(watch)
            with step("starting the processes"):
                self._cast.wait_until_ready(reader, load_layout(self._settings))
            self._screen.tell(f"ready: {self._cast}")
            with step("storing the jobs"):
                opening = self._schedule(ahead)
            self._pass_the_night(opening, ahead, tally)
        self._cast.stop()
        self._screen.tell("the night is over; reading back the topics and the mail store")
        return self._read_back(reader, tally)

    def _read_back(self, reader: KafkaReader, tally: Tally) -> dict[str, Any]:
        with step("reading back"):
            evidence = read_topics(reader, self._settings.names, self._settings.queue)
        evidence.mails, evidence.stopped = self._mailbox.mails(), self._mailbox.stopped()
        observed = Observed(lateness=tally.lateness, kill=self._kill, names=self._cast.names)
        return report(self._script.jobs, evidence, observed)

    def _connected(self) -> tuple[KafkaReader, int]:
        """A reader, and by how much the store's clock is ahead of ours."""
        bootstrap, client = self._settings.require_bootstrap(), self._settings.kafka
        appender = KafkaAppender(bootstrap, client)
        self._stack.callback(appender.close)
        reader = KafkaReader(bootstrap, client)
        self._stack.callback(reader.close)
        with step("clock probe"):
            return reader, store_ahead_ms(appender, self._settings.names.fleet)

    def _schedule(self, ahead: int) -> int:
        """Create every job; epoch ms, by our clock, at which the night starts."""
        opening = wall_ms() + LEAD_MS
        with Dueline(
            bootstrap_servers=self._settings.bootstrap_servers,
            prefix=self._settings.prefix,
            state_dir=self._settings.state_dir,
            kafka=self._settings.kafka,
        ) as client:
            stored = sum(1 for _ in client.schedule_many(requests(self._script, opening + ahead)))
        mails = self._script.mails
        self._screen.tell(
            f"{stored} jobs stored ({mails} mails, {stored - mails} night jobs); the night of"
            f" {_minute(self._script.night.starts)} to {_minute(self._script.night.ends)} UTC is compressed to"
            f" {NIGHT_MS / 1000:.0f} s"
        )
        return opening

    def _pass_the_night(self, opening: int, ahead: int, tally: Tally) -> None:
        """Until every job has succeeded, or none has for PATIENCE_MS."""
        dues = [self._script.night.compressed(job.due, opening, NIGHT_MS) for job in self._script.jobs]
        succeeded, since = 0, opening + NIGHT_MS
        while (now := wall_ms()) < since + PATIENCE_MS:
            if self._kill is None and self._signal_file.exists():
                self._kill_sender(opening, ahead)
            self._cast.check()
            self._screen.show(self._counts(sum(due <= now for due in dues), tally))
            if len(tally.succeeded) > succeeded:
                succeeded, since = len(tally.succeeded), max(since, now)
            if succeeded >= len(dues):
                return
            time.sleep(TICK_S)

    def _counts(self, due: int, tally: Tally) -> Counts:
        return Counts(
            jobs=len(self._script.jobs),
            mails=self._script.mails,
            due=due,
            fired=len(tally.lateness),
            started=len(tally.started),
            sent=self._mailbox.count(),
        )

    def _kill_sender(self, opening: int, ahead: int) -> None:
        """The worker that has sent the victim's mail and not acked it."""
        pid = int(self._signal_file.read_text("ascii"))
        name = self._cast.name_of(pid)
        at = wall_ms()
        self._cast.kill(name)
        self._kill = Kill(pid=pid, idempotency_key=self._script.victim, at=at + ahead)
        self._screen.tell(
            f"{(at - opening) / 1000:.1f} s into the night: {name} (pid {pid}) killed with SIGKILL, after it"
            f" sent {self._script.victim} and before its ack"
        )


@contextmanager
def _directory(keep: bool) -> Iterator[Path]:
    """A private directory of this run."""
    if keep:
        yield Path(tempfile.mkdtemp(prefix="dueline-demo-"))
        return
    with tempfile.TemporaryDirectory(prefix="dueline-demo-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextmanager
def orderly_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, by KeyboardInterrupt; whatever comes while it cleans up
    is ignored, since everything that cleans up has a deadline."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _instant(when: datetime) -> str:
    return format_instant(round(when.timestamp() * 1000))


def _minute(when: datetime) -> str:
    """For people: no invoice is due at a second."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M}"
