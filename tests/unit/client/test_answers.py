"""The thread that reads answers: ready before a command is put, gone when nobody needs it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.client import answers as answers_module
from pipeline.client.answers import Answers
from pipeline.core.errors import StoreUnreachable


class SlowFeed:
    """A feed that is ready when the test says so."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.asked: frozenset[int] = frozenset()
        self.closed = threading.Event()
        self.failure: Exception | None = None

    def follow(self, partitions: frozenset[int]) -> None:
        self.asked |= partitions

    @property
    def following(self) -> frozenset[int]:
        return self.asked if self.ready.is_set() else frozenset()

    def poll(self, timeout_ms: int) -> Sequence[Any]:
        if self.failure is not None:
            raise self.failure
        self.ready.wait(0.001)
        return []

    def close(self) -> None:
        self.closed.set()


def test_a_command_is_not_put_before_its_partition_is_read() -> None:
    feed = SlowFeed()
    answers = Answers(lambda: feed, 24)
    asked = threading.Thread(target=lambda: answers.expect("a", 3, 60))
    asked.start()
    asked.join(0.05)
    assert asked.is_alive()
    feed.ready.set()
    asked.join(10)
    assert not asked.is_alive()
    answers.close()
    assert feed.closed.is_set()


def test_patience_ends() -> None:
    feed = SlowFeed()
    answers = Answers(lambda: feed, 24)
    assert not answers.expect("a", 3, 0.01).done()
    answers.close()


def test_who_sent_one_command_follows_all_partitions_for_the_next(eventually: Any) -> None:
    feed = SlowFeed()
    feed.ready.set()
    answers = Answers(lambda: feed, 24)
    answers.expect("a", 3, 10)
    answers.expect("b", 4, 10)
    assert feed.asked == {3, 4}
    answers.forget("nobody")
    answers.expect("c", 3, 10)
    assert feed.asked == {3, 4}
    answers.forget("a")
    eventually(lambda: feed.asked == set(range(24)))
    answers.close()


def test_an_idle_client_reads_no_longer_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "IDLE_S", 0.0)
    feeds: list[SlowFeed] = []

    def open_feed() -> SlowFeed:
        feeds.append(SlowFeed())
        feeds[-1].ready.set()
        return feeds[-1]

    answers = Answers(open_feed, 24)
    for n in range(3):
        answers.expect(str(n), 3, 10)
        assert not feeds[n].closed.is_set()
        answers.forget(str(n))
        assert feeds[n].closed.wait(10)
    assert len(feeds) == 3
    answers.close()


def test_a_feed_that_fails_keeps_nobody_waiting_and_is_opened_again(caplog: Any) -> None:
    feeds: list[SlowFeed] = []

    def open_feed() -> SlowFeed:
        feeds.append(SlowFeed())
        if len(feeds) == 1:
            raise StoreUnreachable("gone")
        if len(feeds) == 2:
            feeds[-1].failure = StoreUnreachable("gone again")
        feeds[-1].ready.set()
        return feeds[-1]

    answers = Answers(open_feed, 24)
    for n in range(3):
        assert not answers.expect(str(n), 3, 60).done()
    assert len(feeds) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "answers cannot be read: gone",
        "answers cannot be read: gone again",
    ]
    answers.close()
