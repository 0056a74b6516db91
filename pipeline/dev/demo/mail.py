"""The worker's side of the mail: a reminder, and handing it to the SMTP server."""

from __future__ import annotations

import smtplib
from email.message import Message
from email.mime.text import MIMEText
from typing import Any

HOST = "127.0.0.1"
NAME = "mail.example.com"
SENDER = "billing@example.com"
KEY_HEADER = "Idempotency-Key"
TOKEN_HEADER = "Dueline-Token"  # noqa: S105 -- a fencing token is no secret
INVOICE_HEADER = "Invoice"
DUPLICATE = 554
"""RFC 5321 §4.2.2, transaction failed: our server's answer to a known key, and to nothing else."""
SEND_TIMEOUT_S = 10.0


def send(port: int, message: Message) -> bool:
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


def reminder(invoice: dict[str, Any], *, idempotency_key: str, token: int) -> Message:
    """The mail for one invoice; what it is made unique by stands in its headers."""
    message = MIMEText(
        f"Dear {invoice['customer']},\n\n"
        f"invoice {invoice['invoice']} over {invoice['amount']} {invoice['currency']} is not paid yet.\n"
        "If you have paid it in the meantime, please disregard this mail.\n\n"
        f"Scheduled for {invoice['due_local']} {invoice['zone']}.\n"
    )
    message["From"] = SENDER
    message["To"] = invoice["email"]
    message["Subject"] = f"Reminder: invoice {invoice['invoice']} is unpaid"
    message[KEY_HEADER] = idempotency_key
    message[TOKEN_HEADER] = str(token)
    message[INVOICE_HEADER] = str(invoice["invoice"])
    return message
