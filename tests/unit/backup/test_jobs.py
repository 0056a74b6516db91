"""What of `jobs` is in a backup, record by record."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from unit.backup.town import LAYOUT, T0, Town, fold, run_of

from pipeline import codec
from pipeline.backup.cut import Span
from pipeline.backup.jobs import JobsState
from pipeline.core import ids, keys
from pipeline.core.job import Command
from pipeline.fold import CREATE

ALL = Span(1000, 1000)
JOB = ids.anonymous_id(T0, 1)
HOME = LAYOUT.home(JOB)
KEY, RUN = keys.job_key(JOB), codec.RUN.encode(run_of(JOB))
UUID = "00000000-0000-4000-8000-00000000000a"


@pytest.fixture
def town() -> Town:
    return Town(Random(0))


def live(town: Town, span: Span = ALL, partition: int = HOME) -> list[bytes]:
    return [record["key"] for record in state_of(town, span).live(partition)]


def state_of(town: Town, span: Span = ALL) -> JobsState:
    return fold(town, [span] * LAYOUT.partitions)


def test_the_last_record_of_a_key_counts(town: Town) -> None:
    town.put(HOME, b"k/a", b"1")
    town.put(HOME, b"k/a", b"2", [("work", b"default/1")])
    (record,) = state_of(town).live(HOME)
    assert (record["key"], record["value"], record["offset"]) == (b"k/a", b"2", 1)
    assert record["headers"] == [{"name": "work", "value": b"default/1"}]
    town.put(HOME, b"k/a", None)
    assert live(town) == []


def test_a_late_copy_of_what_has_ended_is_no_job(town: Town) -> None:
    town.put(HOME, KEY, RUN)
    town.put(HOME, KEY, None, [("end", b"fired")])
    town.put(HOME, KEY, RUN)
    assert live(town) == []
    assert state_of(town).get(HOME, KEY) is None


def test_what_its_owner_writes_may_come_back(town: Town) -> None:
    town.put(HOME, b"x/" + JOB.encode(), b"1")
    town.put(HOME, b"x/" + JOB.encode(), None, [("end", b"requeued")])
    town.put(HOME, b"x/" + JOB.encode(), b"2")
    assert live(town) == [b"x/" + JOB.encode()]


def test_takeovers_are_of_the_processes_of_this_installation(town: Town) -> None:
    town.put(HOME, keys.takeover_key(HOME), b"1")
    assert live(town) == []


def test_removals_count_up_to_the_first_edge_and_additions_to_the_second(town: Town) -> None:
    town.put(HOME, KEY, RUN)
    town.put(HOME, b"s/daily", b"before")
    town.put(HOME, KEY, None)  # 2
    town.put(HOME, b"s/daily", b"after")
    town.put(HOME, b"d/" + JOB.encode() + b"/1", b"x")  # 4
    town.put(HOME, b"r/" + JOB.encode() + b"/1", b"x")  # 5
    state = state_of(town, Span(2, 5))
    assert [(record["key"], record["value"]) for record in state.live(HOME)] == [
        (KEY, RUN),
        (b"s/daily", b"before"),
        (b"d/" + JOB.encode() + b"/1", b"x"),
    ]


def test_a_record_that_was_moved_counts_where_it_is(town: Town) -> None:
    other = (HOME + 1) % LAYOUT.partitions
    town.put(other, KEY, RUN)
    town.put(other, KEY, None, [("end", b"moved")])
    town.put(HOME, KEY, RUN)
    assert live(town, partition=other) == []
    assert live(town) == [KEY]


def test_what_ended_at_home_is_over_wherever_a_copy_of_it_stands(town: Town) -> None:
    town.put((HOME + 1) % LAYOUT.partitions, KEY, RUN)
    town.put(HOME, KEY, RUN)
    town.put(HOME, KEY, None, [("end", b"fired")])
    assert live(town, partition=(HOME + 1) % LAYOUT.partitions) == []


# -- commands -----------------------------------------------------------------------------------------------


def command(**fields: Any) -> Command:
    return Command(**{"command_id": UUID, "verb": CREATE, "handler": "h", **fields})


def sent(town: Town, partition: int, asked: Command, **record: Any) -> Command:
    """The command as it is in the backup."""
    town.put(partition, keys.command_key(UUID), codec.COMMAND.encode(asked), **record)
    (found,) = state_of(town).live(partition)
    assert found["headers"] == []
    return codec.COMMAND.decode(found["value"])


def test_a_relative_time_counts_from_when_the_log_took_the_command(town: Town) -> None:
    assert sent(town, 0, command(delay_ms=90_000)) == command(due_at=T0 + 90_000)


def test_a_command_in_json_is_kept_as_avro(town: Town) -> None:
    text = f'{{"command_id":"{UUID}","verb":"cancel","job_id":"{JOB}"}}'.encode()
    town.put(0, keys.command_key(UUID), text, [("content-type", b"application/json")])
    (found,) = state_of(town).live(0)
    assert codec.COMMAND.decode(found["value"]) == Command(command_id=UUID, verb="cancel", job_id=JOB)


@pytest.mark.parametrize("verb", [CREATE, f"limited.{CREATE}"])
def test_the_job_of_a_key_keeps_the_idempotency_key_that_it_would_have_had(town: Town, verb: str) -> None:
    id_ = ids.keyed_id("invoice-55")
    home, own = LAYOUT.home(id_), ids.occurrence_of_keyed(id_, ids.incarnation(3, 0))
    asked = command(verb=verb, key="invoice-55", due_at=T0)
    assert sent(town, home, asked) == replace(asked, idempotency_key=own)
    state = state_of(town)
    assert state.makes(own)
    assert not state.makes(ids.occurrence_of_keyed(id_, 0))


@pytest.mark.parametrize("more", [{"idempotency_key": "mine"}, {"on_conflict": "replace"}])
def test_one_that_says_what_its_effect_is_made_unique_by_stays(town: Town, more: dict[str, str]) -> None:
    asked = command(key="invoice-55", due_at=T0, **more)
    assert sent(town, LAYOUT.home(ids.keyed_id("invoice-55")), asked) == asked


def test_a_key_at_the_wrong_partition_makes_its_job_somewhere(town: Town) -> None:
    id_ = ids.keyed_id("invoice-55")
    asked = command(key="invoice-55", due_at=T0)
    assert sent(town, (LAYOUT.home(id_) + 1) % LAYOUT.partitions, asked) == asked
    assert state_of(town).makes(id_)


def test_what_nobody_can_read_is_kept_as_it_is(town: Town) -> None:
    town.put(0, keys.command_key(UUID), b"nonsense", [("a", b"b")])
    (found,) = state_of(town).live(0)
    assert (found["value"], found["headers"]) == (b"nonsense", [{"name": "a", "value": b"b"}])


def test_commands_and_facts_stay_in_the_order_of_the_log(town: Town) -> None:
    first, second = UUID[:-1] + "b", UUID
    town.put(0, keys.command_key(first), codec.COMMAND.encode(command(command_id=first, due_at=T0)))
    town.put(0, b"d/" + JOB.encode() + b"/1", b"x")
    town.put(0, keys.command_key(second), codec.COMMAND.encode(command(command_id=second, due_at=T0)))
    town.put(0, b"s/daily", b"x")
    assert live(town, partition=0) == [
        b"s/daily",
        keys.command_key(first),
        b"d/" + JOB.encode() + b"/1",
        keys.command_key(second),
    ]


def test_a_command_whose_effect_is_kept_is_left_out(town: Town) -> None:
    town.put(0, keys.command_key(UUID), codec.COMMAND.encode(command(due_at=T0)))
    state = state_of(town)
    state.end(keys.command_key(UUID))
    assert list(state.live(0)) == []


@pytest.mark.parametrize(("name", "limit"), [("BATCH", 2), ("BATCH_BYTES", 10)])
def test_more_than_fits_one_batch(town: Town, monkeypatch: pytest.MonkeyPatch, name: str, limit: int) -> None:
    monkeypatch.setattr(f"pipeline.backup.jobs.{name}", limit)
    for number in range(5):
        town.put(0, b"k/%d" % number, b"x")
    town.put(0, b"k/0", None)
    assert live(town, partition=0) == [b"k/%d" % number for number in range(1, 5)]
