"""A real SMTP server on loopback, in front of the notification store."""

from __future__ import annotations

import asyncio
import threading
from email import message_from_bytes
from types import TracebackType
from typing import Self

from aiosmtpd.smtp import SMTP, Envelope, Session

from pipeline.core.errors import DuelineError
from pipeline.dev.demo.mail import DUPLICATE, HOST, INVOICE_HEADER, KEY_HEADER, NAME, TOKEN_HEADER
from pipeline.dev.demo.mailbox import Mail, Mailbox

START_TIMEOUT_S = 10.0


class _Door:
    """What aiosmtpd asks when a mail has arrived."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:
        content = envelope.original_content or b""
        message = message_from_bytes(content)  # headers as text: what is asked of them needs no more
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
