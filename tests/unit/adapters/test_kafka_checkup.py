"""The doctor's questions to a store: one that is not answered is kept with its reason, the others are asked."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from unit.doctor.healthy import HEALTHY

from pipeline.adapters.kafka_checkup import Checkup, Question, _guards
from pipeline.config import load_settings
from pipeline.core.errors import DuelineError, Refused, StoreUnreachable
from pipeline.doctor import Facts
from pipeline.doctor.facts import Share


@pytest.fixture(scope="module")
def nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkup]:
    """Of a store where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nor can anybody else begin to
        settings = load_settings(
            bootstrap_servers=f"127.0.0.1:{taken.getsockname()[1]}",
            state_dir=tmp_path_factory.mktemp("state"),
            store_timeout_ms=300,
        )
        with Checkup(settings) as checkup:
            yield checkup


def test_an_unreachable_store_is_said_in_time(nobody: Checkup) -> None:
    begun = time.monotonic()
    with pytest.raises(StoreUnreachable, match="describing the cluster"):
        nobody.facts()
    assert time.monotonic() - begun < 20


def refuses(checkup: Checkup, facts: Facts) -> Mapping[str, Any]:
    raise Refused("no right to describe groups")


def answers(checkup: Checkup, facts: Facts) -> Mapping[str, Any]:
    return {"now": facts.now + 1, "clocks": {}}


def test_what_is_not_answered_stands_with_its_reason_and_the_rest_is_asked(nobody: Checkup) -> None:
    questions: dict[str, Question] = {"members": refuses, "now clocks": answers}
    facts = nobody._asked(HEALTHY, questions)
    assert facts.missing == {"members": "no right to describe groups"}
    assert (facts.now, facts.clocks) == (HEALTHY.now + 1, {})
    later = nobody._asked(facts, {"members": lambda *_: {"members": {"g": ()}}, "now clocks": refuses})
    assert later.members == {"g": ()}
    assert later.missing == dict.fromkeys(("now", "clocks"), "no right to describe groups")


def test_without_a_layout_nothing_else_is_asked(nobody: Checkup) -> None:
    facts = nobody._asked(HEALTHY, {"layout": lambda *_: {"layout": None}, "members": refuses})
    assert (facts.layout, facts.missing) == (None, {})


@pytest.mark.parametrize(
    ("question", "lacking"),
    [
        (Checkup.ends, "copies"),
        (Checkup.undecided, "ends"),
        (Checkup.unacked, "ends"),
        (Checkup.unacked, "committed"),
    ],
)
def test_what_stands_on_an_answer_that_lacks_is_not_answered_either(
    nobody: Checkup, question: Question, lacking: str
) -> None:
    """Else it would look as if there were nothing to find."""
    with pytest.raises(DuelineError, match="timed out"):
        question(nobody, replace(HEALTHY, missing={lacking: "timed out"}))


def test_guards_of_groups_with_any_name() -> None:
    values = {b"g/a.b/c/12": b"v", b"g/a/x": b"no number", b"layout": b"?"}
    assert dict(_guards(values)) == {Share("a.b/c", 12): b"v"}
