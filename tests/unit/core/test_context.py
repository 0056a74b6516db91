"""What a handler is given."""

import pytest
from sides import Quiet

from pipeline.core.context import Context, formatted
from pipeline.core.errors import InvalidInput
from pipeline.core.times import aware


def test_a_handler_sees_when_it_should_stop():
    side = Quiet()
    context = Context(
        job_id="j",
        occurrence_id="j",
        handler="email.send",
        payload={},
        due_at=aware(0),
        nominal_at=aware(0),
        fired_at=aware(0),
        run=1,
        attempt=1,
        idempotency_key="j",
        token=1,
        side=side,
    )
    assert not context.cancelled
    side.end = True
    assert context.cancelled


class Keeping(Quiet):
    def __init__(self):
        super().__init__()
        self.lines = []
        self.produced = []
        self.told = []

    def log(self, line):
        self.lines.append(line)

    def progress(self, fraction, note):
        self.told.append((fraction, note))

    def produce(self, topic, value, key, headers, partition):
        self.produced.append((topic, value, key, headers, partition))


def context(side):
    now = aware(0)
    return Context(
        job_id="j", occurrence_id="j", handler="email.send", payload={}, due_at=now, nominal_at=now, fired_at=now,
        run=1, attempt=1, idempotency_key="j", token=1, side=side,
    )  # fmt: skip


def test_what_is_logged_from_info_on_is_kept_whatever_is_shown():
    side = Keeping()
    logger = context(side).logger
    logger.info("sent %s of %d", "mail", 3)
    logger.debug("not kept")
    logger.warning("50 % of it")
    assert side.lines == ["INFO sent mail of 3", "WARNING 50 % of it"]
    assert formatted("broken %d", ("arguments",)) == "broken %d"


def test_a_note_of_progress_is_cut():
    side = Keeping()
    context(side).progress(0.5, "x" * 300)
    assert side.told == [(0.5, "x" * 200)]


def test_records_handed_on_are_bytes_or_text():
    side = Keeping()
    context(side).produce("t", "é", key=b"k", headers={"a": "b"}, partition=1)
    context(side).produce("t", None)
    assert side.produced == [("t", "é".encode(), b"k", {"a": b"b"}, 1), ("t", None, None, {}, None)]
    for wrong in ({"value": 5}, {"value": b"", "key": 5}, {"value": b"", "headers": {"a": 5}}):
        with pytest.raises(InvalidInput, match="must be bytes or text, not int"):
            context(side).produce("t", **wrong)
