"""`dueline queue` over a store in memory; the real one: tests/integration/test_queues.py."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from unit.backup.town import run_of

from pipeline import codec
from pipeline.adapters import kafka_queues
from pipeline.adapters.kafka_meta import Meta
from pipeline.cli import queue, queue_purge
from pipeline.core import ids, queues
from pipeline.core.job import AckState, Failure, InFlight
from pipeline.core.keys import QUEUE, queue_key
from pipeline.core.queues import Pause, Purge, QueueChange, QueueState, to_event
from pipeline.core.topics import LiveTopic
from pipeline.ports import Put

DAY_MS = 86_400_000


class Admin:
    """The parts of `TopicAdmin` that are used, over the store in memory."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.meta = self
        self.kept_ms = 30 * DAY_MS
        self.hidden = self.hides = 0
        """Looks at which what was just written is hidden by a transaction."""

    def read(self) -> Meta:
        if self.hidden > 0:
            self.hidden -= 1
            return Meta()
        values = {record.key(): record.value() for record in self._records()}
        return Meta(queues={key: value for key, value in values.items() if key.startswith(QUEUE) and value})

    def write(self, decide: Any) -> Any:
        puts, answer = decide(self.read())
        self.hidden = self.hides
        for key, value in puts.items():
            self.store.cluster.append(Put(self.store.names.meta, 0, key, value))
        return answer

    def _records(self) -> Any:
        return self.store.cluster.partition(self.store.names.meta, 0).read(0, 1_000)[0]

    def topic_id(self, name: str) -> str:
        return f"id of {name}"

    def live(self, names: list[str]) -> Mapping[str, LiveTopic]:
        settings = {"retention.ms": str(self.kept_ms)}
        return {name: LiveTopic(name=name, partitions=3, replication=1, settings=settings) for name in names}


@pytest.fixture
def admin(store: Any, monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin(store)
    store.cluster.create_topic(store.names.meta, 1)
    monkeypatch.setattr(kafka_queues, "topic_admin", lambda settings: made)
    monkeypatch.setattr(queue, "getpass", SimpleNamespace(getuser=lambda: "ann"))
    monkeypatch.setattr(queue, "socket", SimpleNamespace(gethostname=lambda: "h1"))
    monkeypatch.setattr(queue_purge, "LOOK_S", 0)
    return made


def fired(store: Any, count: int) -> list[Any]:
    found = [
        run_of(ids.anonymous_id(store.clock.now(), number), due_at=store.clock.now())
        for number in range(count)
    ]
    for run in found:
        store.put(run)
        store.fire(run)
    return found


def state(store: Any, name: str = "default") -> Any:
    (value,) = [
        record.value()
        for record in store.cluster.partition(store.names.meta, 0).read(0, 1_000)[0][-1:]
        if record.key() == queue_key(name)
    ]
    return queues.of_event(codec.EVENT.decode(value))


# -- list ---------------------------------------------------------------------------------------------------


def test_a_queue_shows_what_waits_runs_and_who_serves_it(
    dueline: Any, store: Any, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_queues({"mail": 2})
    monkeypatch.setenv("DUELINE_QUEUES__MAIL__RATE", "30/m")
    begun = fired(store, 3)
    store.clock.advance(90_000)
    store.ack(begun[0], AckState.STARTED)
    flight = InFlight(occurrence_id="j", run=1, attempt=1, token=1, handler="a", started_at=1)
    store.beat("w1", queues=("default",), handlers=("a",), in_flight=(flight,))
    plain, mail = dueline("queue", "list", "--json").lines("queue_list")
    assert (plain["queue"], plain["partitions"], plain["rate"]) == ("default", 3, None)
    assert (plain["waiting"], plain["running"], plain["workers"], plain["age_ms"]) == (2, 1, ["w1"], 90_000)
    assert plain["oldest_waiting"] == "2027-01-15T08:00:00.000Z"
    assert (plain["paused"], plain["purge"], plain["changed"]) == (None, None, None)
    assert (mail["queue"], mail["rate"], mail["waiting"], mail["age_ms"]) == ("mail", 0.5, 0, None)
    told = dueline("queue", "list").out
    assert [line.split()[0] for line in told.splitlines()] == ["QUEUE", "default", "mail"]
    assert "90 s" in told


def test_a_pause_that_endangers_what_waits_is_warned_of(dueline: Any, store: Any, admin: Admin) -> None:
    fired(store, 1)
    ran = dueline("queue", "pause", "default", "--reason", "bad\x1b[31mdeploy")
    assert (ran.code, ran.err) == (2, "dueline: --reason: is not one line of at most 500 characters\n")
    at = store.clock.now()
    hostile = Pause(by="ann@h1", at=at, reason="bad\x1b[31mdeploy")  # as anybody may append it
    state = QueueState(queue="default", changed=QueueChange.PAUSED, by="ann@h1", at=at, pause=hostile)
    admin.write(lambda _: ({queue_key("default"): codec.EVENT.encode(to_event(state))}, None))
    store.clock.advance(5 * DAY_MS)
    assert dueline("queue", "list").err == ""
    store.clock.advance(DAY_MS)
    ran = dueline("queue", "list")
    assert (
        "default is paused, its oldest run has waited for 6 d, and its topic forgets it after 30 d" in ran.err
    )
    assert "by ann@h1 since 2027-01-15T08:00:00.000Z: bad·[31mdeploy" in ran.out
    admin.kept_ms = -1
    ran = dueline("queue", "list", "--json")
    assert (ran.lines("queue_list")[0]["kept_ms"], ran.err) == (None, "")


# -- pause and resume ---------------------------------------------------------------------------------------


def test_a_pause_stands_until_it_is_resumed_and_both_say_by_whom(
    dueline: Any, store: Any, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dueline("queue", "pause", "default", "--reason", "deploy", "--json").json("queue_pause")
    assert (first["outcome"], first["by"], first["reason"]) == ("paused", "ann@h1", "deploy")
    monkeypatch.setattr(queue, "me", lambda: "bob@h2")
    store.clock.advance(1_000)
    again = dueline("queue", "pause", "default", "--json")
    assert again.json("queue_pause") == first
    assert "it was paused already, by ann@h1 at 2027-01-15T08:00:00.000Z: deploy\n" in again.err
    view = dueline("queue", "list", "--json").lines("queue_list")[0]
    assert view["paused"] == {"by": "ann@h1", "at": "2027-01-15T08:00:00.000Z", "reason": "deploy"}
    assert dueline("status", "--json").json("status")["queues"][0]["paused"] == view["paused"]
    assert "by ann@h1 since" in dueline("status", "--fast").out
    resumed = dueline("queue", "resume", "default", "--json").json("queue_resume")
    assert resumed == {
        "queue": "default",
        "outcome": "running",
        "by": "bob@h2",
        "at": "2027-01-15T08:00:01.000Z",
    }
    store.clock.advance(1_000)
    assert dueline("queue", "resume", "default", "--json").json("queue_resume") == resumed
    view = dueline("queue", "list", "--json").lines("queue_list")[0]
    assert (view["paused"], view["changed"]["what"], view["changed"]["by"]) == (None, "resumed", "bob@h2")


def test_a_pause_is_told_of_once_the_workers_can_read_it(
    dueline: Any, store: Any, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_queues, "LOOK_S", 0)
    admin.hides = 3
    assert dueline("queue", "pause", "default").code == 0
    assert admin.hidden == 0
    monkeypatch.setattr(kafka_queues, "HIDDEN_S", 0)
    admin.hides = 1 << 62
    ran = dueline("queue", "resume", "default")
    assert (ran.code, ran.out) == (5, "")
    assert "a transaction that stays open hides it from the workers" in ran.err


def test_a_queue_that_nobody_ever_paused_is_running(dueline: Any, store: Any, admin: Admin) -> None:
    answer = dueline("queue", "resume", "default", "--json").json("queue_resume")
    assert (answer["outcome"], answer["by"], answer["at"]) == ("running", None, None)


def test_what_cannot_be_read_counts_as_paused_and_resuming_mends_it(
    dueline: Any, store: Any, admin: Admin
) -> None:
    store.cluster.append(Put(store.names.meta, 0, queue_key("default"), b"nonsense"))
    assert "cannot be read: `dueline queue resume` writes it anew" in dueline("queue", "list").out
    assert dueline("queue", "resume", "default").code == 0
    assert state(store).pause is None


@pytest.mark.parametrize("command", [("pause",), ("resume",), ("purge", "--yes")])
def test_a_queue_that_is_none_is_refused(dueline: Any, store: Any, admin: Admin, command: Any) -> None:
    verb, *rest = command
    ran = dueline("queue", verb, "nowhere", *rest)
    assert (ran.code, ran.out) == (3, "")
    assert "there is no queue nowhere: there are default" in ran.err
    ran = dueline("queue", verb, "No Name", *rest)
    assert (ran.code, "QUEUE: 'No Name'" in ran.err) == (2, True)


# -- purge --------------------------------------------------------------------------------------------------


def test_a_purge_tells_the_number_and_wants_a_second_word(dueline: Any, store: Any, admin: Admin) -> None:
    assert dueline("queue", "purge", "default", "--yes", "--json").json("queue_purge")["outcome"] == "nothing"
    fired(store, 3)
    ran = dueline("queue", "purge", "default")
    assert (ran.code, ran.out) == (4, "")
    assert (
        "3 runs wait in default, the oldest since 2027-01-15T08:00:00.000Z: cancel them with --yes" in ran.err
    )
    assert store.cluster.partition(store.names.meta, 0).end == 0, "nothing was written"


def test_without_a_worker_it_is_stored_and_said_so(dueline: Any, store: Any, admin: Admin) -> None:
    fired(store, 3)
    ran = dueline("queue", "purge", "default", "--yes", "--json")
    answer = ran.json("queue_purge")
    assert (answer["outcome"], answer["waiting"], answer["cancelled"], answer["left"]) == ("purging", 3, 0, 3)
    assert "no worker serves it: the next one that does ends them" in ran.err
    purge = state(store).purge
    ends = [store.cluster.partition(store.names.work("default"), n).end for n in range(3)]
    assert (list(purge.ends), purge.topic_id, purge.id) == (ends, "id of dueline.work.default", answer["id"])
    fired(store, 2)
    view = dueline("queue", "list", "--json").lines("queue_list")[0]
    assert (view["waiting"], view["purge"]["left"], view["changed"]["what"]) == (5, 3, "purged")
    assert "3 to be cancelled, by ann@h1" in dueline("queue", "list").out


def test_only_what_was_emitted_before_is_meant(dueline: Any, store: Any, admin: Admin) -> None:
    fired(store, 3)
    store.clock.advance(60_000)
    fired(store, 2)
    ran = dueline("queue", "purge", "default", "--before", "2027-01-15T08:00:30Z", "--yes", "--json")
    answer = ran.json("queue_purge")
    assert (answer["waiting"], answer["before"]) == (3, "2027-01-15T08:00:30.000Z")
    assert dueline("queue", "purge", "default", "--before", "yesterday").code == 2
    assert dueline("queue", "purge", "default", "--wait", "never").code == 2


def test_its_end_is_waited_for_and_what_it_ended_is_counted(
    dueline: Any, store: Any, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = fired(store, 3)
    store.beat("w1", queues=("default",))
    looks = iter((2, 0))

    def worker(here: Any, name: str, purge: Purge) -> int:
        """It ends two; one had been started in between."""
        left = next(looks)
        if not left:
            for run in runs[:2]:
                error = Failure(type="Cancel", message=queues.purge_reason(purge))
                store.ack(run, AckState.CANCELLED, error=error)
            other = Failure(type="Cancel", message="by its handler")
            store.ack(runs[2], AckState.CANCELLED, error=other)
        return left

    monkeypatch.setattr(queue_purge, "left_of", worker)
    ran = dueline("queue", "purge", "default", "--yes", "--json")
    answer = ran.json("queue_purge")
    assert (answer["outcome"], answer["waiting"], answer["cancelled"], answer["left"]) == ("purged", 3, 2, 0)
    assert ran.err == ""


def test_a_purge_of_a_topic_that_is_gone_has_nothing_left(dueline: Any, store: Any, admin: Admin) -> None:
    fired(store, 1)
    old = queues.purged(
        queues.paused(None, "default", Pause(by="x", at=1)),
        "default",
        Purge(id="p", by="x", at=1, topic_id="another", ends=(9, 9, 9)),
    )
    store.cluster.append(
        Put(store.names.meta, 0, queue_key("default"), codec.EVENT.encode(queues.to_event(old)))
    )
    assert dueline("queue", "list", "--json").lines("queue_list")[0]["purge"]["left"] == 0
