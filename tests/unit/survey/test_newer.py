"""What a newer version wrote is not known, and is not taken for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState
from pipeline.ports import Put
from pipeline.survey import Filter, Ground, Window, survey
from pipeline.survey.verifying import verify_promises
from tests.unit.survey.conftest import HOUR, Yard

NEWER = bytes.fromhex("c301") + (77).to_bytes(8, "little") + b"rest"


@pytest.fixture
def newer(yard: Yard) -> Yard:
    """A yard where schema 77 was announced."""
    layout = yard.store.layout
    yard.store.layout = replace(layout, fingerprints=(*layout.fingerprints, f"{77:016x}"))
    return yard


def put(yard: Yard, topic: Callable[[str], str], occurrence: str, run: int, key: bytes, value: bytes) -> None:
    place = yard.offsets[occurrence, run][0]
    yard.store.cluster.append(Put(topic("default"), place, key, value))


def read(yard: Yard, window: Window = HOUR, **wanted: Any) -> tuple[dict[str, str], Ground]:
    ground = yard.ground
    return {seen.occurrence_id: seen.state.value for seen in survey(ground, window, Filter(**wanted))}, ground


@pytest.mark.parametrize("kind", ["t", "s"])
def test_a_run_of_which_only_a_newer_ack_speaks_is_unreadable_and_neither_unacked_nor_waiting(
    newer: Yard, kind: str
) -> None:
    run, other = newer.fire(newer.run(0)), newer.fire(newer.run(1))
    id_ = run.occurrence_id
    key = keys.terminal_key(id_, 1, 1) if kind == "t" else keys.started_key(id_, 1, 5)
    put(newer, newer.store.names.acks, id_, 1, key, NEWER)
    newer.commit_all()
    states, ground = read(newer)
    assert states == {id_: "unreadable", other.occurrence_id: "unacked"}
    assert dict(ground.newer) == {newer.store.names.acks("default"): 1}
    assert [f.id for f in next(iter(verify_promises(newer.ground, HOUR).first.values()))] == [
        other.occurrence_id
    ]


def test_a_terminal_ack_that_can_be_read_outranks_a_start_that_cannot(newer: Yard) -> None:
    run = newer.fire(newer.run())
    put(newer, newer.store.names.acks, run.occurrence_id, 1, keys.started_key(run.occurrence_id, 1, 5), NEWER)
    newer.ack(run, AckState.SUCCEEDED)
    assert read(newer)[0] == {run.occurrence_id: "succeeded"}


def test_a_run_of_a_newer_version_is_what_nobody_knows_of(newer: Yard) -> None:
    first = newer.ack(newer.fire(newer.run(0)), AckState.RETRYING)
    names = newer.store.names
    put(newer, names.work, first.occurrence_id, 1, first.occurrence_id.encode(), NEWER)
    only = newer.run(1)
    newer.store.end(only, "fired", place="default/1")
    put(newer, names.work, first.occurrence_id, 1, only.occurrence_id.encode(), NEWER)
    states, ground = read(newer)
    assert states == {first.occurrence_id: "unreadable", only.occurrence_id: "unreadable"}
    assert dict(ground.newer) == {names.work("default"): 2}
    assert verify_promises(newer.ground, HOUR).first == {}
    assert read(newer, handler="email.send")[0] == {first.occurrence_id: "unreadable"}


def test_what_has_not_fired_and_cannot_be_read_is_counted_beside(newer: Yard) -> None:
    names, layout = newer.store.names, newer.store.layout
    run = newer.run()
    home, key = layout.home(run.job_id), keys.job_key(run.job_id)
    newer.store.cluster.append(Put(names.jobs, home, key, NEWER))
    newer.store.cluster.append(Put(names.jobs, layout.home(keyed_id("a")), keys.keyed_key("a"), NEWER))
    newer.store.cluster.append(Put(names.jobs, layout.home_of_name("a"), keys.schedule_key("a"), NEWER))
    newer.store.cluster.append(Put(names.events, 0, b"x", NEWER))
    topic = names.jobs.encode()
    letter = NEWER + b"%c%b" % (len(topic) << 1, topic)
    newer.store.cluster.append(Put(names.dead, 0, b"x", letter))
    states, ground = read(newer)
    assert states == {}
    assert dict(ground.newer) == {names.jobs: 3, names.events: 1, names.dead: 1}


def test_of_a_schema_that_nobody_announced_it_is_no_record_of_ours(yard: Yard) -> None:
    run = yard.fire(yard.run())
    put(yard, yard.store.names.acks, run.occurrence_id, 1, keys.terminal_key(run.occurrence_id, 1, 1), NEWER)
    put(yard, yard.store.names.work, run.occurrence_id, 1, b"j-other", NEWER)
    yard.commit_all()
    states, ground = read(yard)
    assert states == {run.occurrence_id: "unacked"}
    assert not ground.newer
    assert codec.ACK.frame != NEWER[:10]
