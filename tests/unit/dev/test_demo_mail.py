"""The mail store refuses a known key, over a real SMTP server too; and what the handler makes of it."""

from __future__ import annotations

import smtplib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from sides import Quiet

from pipeline import Context
from pipeline.dev.demo import handlers
from pipeline.dev.demo.mail import HOST, reminder, send
from pipeline.dev.demo.mailbox import Mail, Mailbox, Stopped, Stored
from pipeline.dev.demo.smtp import MailServer

INVOICE = {
    "invoice": 55,
    "customer": "North Loom Pte Ltd",
    "email": "accounts.north.loom@example.net",
    "amount": "124.84",
    "currency": "SGD",
    "due_local": "2026-11-30T08:50:00",
    "zone": "Asia/Singapore",
}
KEY = "dunning_invoice_55"


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    with closing(Mailbox(tmp_path / "mailbox.sqlite", create=True)) as box:
        yield box


@pytest.fixture
def server(mailbox: Mailbox) -> Iterator[MailServer]:
    with MailServer(mailbox) as listening:
        yield listening


@pytest.fixture
def stage(
    mailbox: Mailbox, server: MailServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A worker process's stage, without a victim. The result is the signal file."""
    signal_file = tmp_path / "mail_sent"
    handlers.Stage(
        smtp_port=server.port,
        mailbox=str(tmp_path / "mailbox.sqlite"),
        victim="",
        signal_file=str(signal_file),
    ).publish(tmp_path / "stage.json")
    monkeypatch.setenv(handlers.STAGE_VARIABLE, str(tmp_path / "stage.json"))
    handlers.stage.cache_clear()
    handlers.mailbox.cache_clear()
    yield signal_file
    handlers.mailbox().close()


def mail(token: int, key: str = KEY) -> Mail:
    return Mail(idempotency_key=key, token=token, invoice=55, recipient="a@example.com", message=b"m")


def context(attempt: int, token: int) -> Context:
    when = datetime(2026, 11, 30, tzinfo=UTC)
    return Context(
        job_id="j", occurrence_id="j", handler="dunning.mail", payload=dict(INVOICE), due_at=when,
        nominal_at=when, fired_at=when, run=1, attempt=attempt, idempotency_key=KEY, token=token,
        side=Quiet(),
    )  # fmt: skip


# -- the store ----------------------------------------------------------------------------------------------


def test_a_known_key_is_refused_and_the_refusal_kept(mailbox: Mailbox) -> None:
    assert not mailbox.known(KEY)
    assert mailbox.accept(mail(1))
    assert mailbox.known(KEY)
    assert not mailbox.accept(mail(2))
    mailbox.note_stopped(KEY, 3)
    assert mailbox.mails() == [Stored(KEY, 1, 55, "a@example.com")]
    assert mailbox.stopped() == [Stopped(KEY, 2, "server"), Stopped(KEY, 3, "lookup")]
    assert mailbox.count() == 1


def test_of_many_at_once_one_is_accepted(mailbox: Mailbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        accepted = list(pool.map(lambda n: mailbox.accept(mail(n)), range(1, 33)))
    assert accepted.count(True) == 1
    assert mailbox.count() == 1
    assert len(mailbox.stopped()) == 31


def test_a_key_and_its_mail_are_stored_together_or_not_at_all(mailbox: Mailbox) -> None:
    broken = Mail(idempotency_key=KEY, token=1, invoice=None, recipient="a@example.com", message=b"m")  # type: ignore[arg-type]
    with pytest.raises(Exception, match="NOT NULL"):
        mailbox.accept(broken)
    assert not mailbox.known(KEY), "a key without its mail would stop the mail for ever"


def test_the_largest_token_comes_back_whole(mailbox: Mailbox) -> None:
    largest = 2**63 - 1
    mailbox.accept(mail(largest))
    mailbox.note_stopped(KEY, largest)
    assert (mailbox.mails()[0].token, mailbox.stopped()[0].token) == (largest, largest)


# -- the server ---------------------------------------------------------------------------------------------


def test_a_mail_goes_through_smtp_into_the_store(mailbox: Mailbox, server: MailServer) -> None:
    assert send(server.port, reminder(INVOICE, idempotency_key=KEY, token=7))
    assert mailbox.mails() == [Stored(KEY, 7, 55, "accounts.north.loom@example.net")]


def test_the_second_mail_with_a_key_is_refused_by_the_server(mailbox: Mailbox, server: MailServer) -> None:
    assert send(server.port, reminder(INVOICE, idempotency_key=KEY, token=7))
    assert not send(server.port, reminder(INVOICE, idempotency_key=KEY, token=8))
    assert mailbox.count() == 1
    assert mailbox.stopped() == [Stopped(KEY, 8, "server")]


def test_the_reminder_says_what_it_is_about() -> None:
    text = reminder(INVOICE, idempotency_key=KEY, token=7).as_bytes()
    read = message_from_bytes(text, policy=policy.default)
    assert read["To"] == "accounts.north.loom@example.net"
    assert read["Idempotency-Key"] == KEY
    assert "124.84 SGD" in read.get_content()


@pytest.mark.parametrize("header", ["Idempotency-Key", "Dueline-Token"])
def test_a_mail_that_cannot_be_judged_is_refused_otherwise_than_a_duplicate(
    mailbox: Mailbox, server: MailServer, header: str
) -> None:
    message = reminder(INVOICE, idempotency_key=KEY, token=7)
    del message[header]
    if header == "Dueline-Token":
        message[header] = "seven"
    with pytest.raises(smtplib.SMTPDataError) as refusal:
        send(server.port, message)
    assert refusal.value.smtp_code == 550
    assert mailbox.count() == 0


def test_the_server_is_gone_afterwards(mailbox: Mailbox) -> None:
    with MailServer(mailbox) as listening:
        port = listening.port
    with pytest.raises(OSError, match="refused"):
        smtplib.SMTP(HOST, port, timeout=30)


# -- the handler --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stage")
def test_the_handler_sends_once_and_is_then_a_no_op(mailbox: Mailbox) -> None:
    assert handlers.dunning_mail(context(1, 7), INVOICE) == {"mail": "sent"}
    assert handlers.dunning_mail(context(2, 8), INVOICE) == {"mail": "stopped", "by": "lookup"}
    assert mailbox.mails() == [Stored(KEY, 7, 55, "accounts.north.loom@example.net")]
    assert mailbox.stopped() == [Stopped(KEY, 8, "lookup")]


@pytest.mark.usefixtures("stage")
def test_a_send_that_crosses_another_is_stopped_by_the_server(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both attempts looked before either had sent."""
    monkeypatch.setattr(Mailbox, "known", lambda _self, _key: False)
    assert handlers.dunning_mail(context(1, 7), INVOICE) == {"mail": "sent"}
    assert handlers.dunning_mail(context(2, 8), INVOICE) == {"mail": "stopped", "by": "server"}
    assert mailbox.count() == 1


def victim(attempt: int, stage_file: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Path]]:
    waited: list[Path] = []
    monkeypatch.setattr(handlers, "await_death", waited.append)
    staged = handlers.stage()
    monkeypatch.setattr(
        handlers,
        "stage",
        lambda: handlers.Stage(
            smtp_port=staged.smtp_port, mailbox=staged.mailbox, victim=KEY, signal_file=staged.signal_file
        ),
    )
    return handlers.dunning_mail(context(attempt, 7), INVOICE), waited


def test_the_victim_waits_for_death_after_its_mail_is_stored(
    stage: Path, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, waited = victim(1, stage, monkeypatch)
    assert waited == [stage]
    assert mailbox.count() == 1


def test_only_the_first_attempt_dies(stage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, waited = victim(2, stage, monkeypatch)
    assert waited == []
    assert result == {"mail": "sent"}


def test_a_victim_that_nobody_kills_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with pytest.raises(RuntimeError, match="not killed"):
        handlers.await_death(tmp_path / "mail_sent")
    assert int((tmp_path / "mail_sent").read_text()) > 0
    assert slept == [handlers.WAIT_FOR_DEATH_S]


def test_the_handlers_say_that_they_belong_to_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(handlers.STAGE_VARIABLE, raising=False)
    handlers.stage.cache_clear()
    with pytest.raises(Exception, match="dueline demo"):
        handlers.dunning_mail(context(1, 7), INVOICE)


def test_a_night_job_says_what_it_stands_for() -> None:
    assert handlers.night_job(context(1, 7), {"command": "backup --full"}) == {"command": "backup --full"}
