"""A real SMTP server on loopback in front of the notification store, and the client that sends a reminder."""

from __future__ import annotations

import asyncio
import smtplib
import threading
from email import message_from_bytes, policy
from email.message import EmailMessage
from types import TracebackType
from typing import Any, Self

from aiosmtpd.smtp import SMTP, Envelope, Session

from pipeline.core.errors import DuelineError
from pipeline.dev.demo.mailbox import Mail, Mailbox

HOST = "127.0.0.1"
NAME = "mail.example.com"
SENDER = "billing@example.com"
KEY_HEADER = "Idempotency-Key"
TOKEN_HEADER = "Dueline-Token"  # noqa: S105 -- a fencing token is no secret
INVOICE_HEADER = "Invoice"
DUPLICATE = 554
"""RFC 5321 §4.2.2, transaction failed: our server's answer to a known key, and to nothing else."""
SEND_TIMEOUT_S = 10.0
START_TIMEOUT_S = 10.0


class _Door:
    """What aiosmtpd asks when a mail has arrived."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:
        content = envelope.original_content or b""
        message = message_from_bytes(content, policy=policy.default)
        try:
            mail = Mail(
                idempotency_key=str(message[KEY_HEADER] or ""),
                token=int(message[TOKEN_HEADER] or 0),
                invoice=int(message[INVOICE_HEADER] or 0),
                recipient=envelope.rcpt_tos[0],
                message=content,
            )
        except ValueError:
            return "550 5.6.0 a header is not a number"
        if not mail.idempotency_key:
            return f"550 5.6.0 the header {KEY_HEADER} is missing"
        # One short transaction; nobody else waits for this loop.
        accepted = self._mailbox.accept(mail)
        return "250 2.0.0 stored" if accepted else f"{DUPLICATE} 5.7.0 this key was used before"


class MailServer:
    """The server in a thread of this process; a context manager. `port` is valid inside."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._door = _Door(mailbox)
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="smtp", daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        """Listen on a free port of loopback. DuelineError if that fails."""
        self._thread.start()
        if not self._listening.wait(START_TIMEOUT_S) or not self.port:
            raise DuelineError("the mail server could not listen on 127.0.0.1")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(START_TIMEOUT_S)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        finally:
            self._listening.set()  # also when it failed: the starter must not wait for its time-out

    async def _serve(self) -> None:
        server = await self._loop.create_server(self._protocol, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()

    def _protocol(self) -> SMTP:
        return SMTP(self._door, hostname=NAME, ident="dueline demo", loop=self._loop)


def send(port: int, message: EmailMessage) -> bool:
    """Hand `message` to the server; False if it has accepted one with this key before.

    Raises smtplib.SMTPException or OSError when it could not be handed over.
    """
    try:
        # A name for EHLO is given because looking up our own can wait for a name server.
        with smtplib.SMTP(HOST, port, local_hostname=NAME, timeout=SEND_TIMEOUT_S) as client:
            client.send_message(message)
    except smtplib.SMTPDataError as refusal:
        if refusal.smtp_code == DUPLICATE:
            return False
        raise
    return True


def reminder(invoice: dict[str, Any], *, idempotency_key: str, token: int) -> EmailMessage:
    """The mail for one invoice; what it is made unique by stands in its headers."""
    message = EmailMessage(policy=policy.SMTP)
    message["From"] = SENDER
    message["To"] = invoice["email"]
    message["Subject"] = f"Reminder: invoice {invoice['invoice']} is unpaid"
    message[KEY_HEADER] = idempotency_key
    message[TOKEN_HEADER] = str(token)
    message[INVOICE_HEADER] = str(invoice["invoice"])
    message.set_content(
        f"Dear {invoice['customer']},\n\n"
        f"invoice {invoice['invoice']} over {invoice['amount']} {invoice['currency']} is not paid yet.\n"
        "If you have paid it in the meantime, please disregard this mail.\n\n"
        f"Scheduled for {invoice['due_local']} {invoice['zone']}.\n"
    )
    return message
