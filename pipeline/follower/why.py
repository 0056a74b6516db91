"""What a job waits for, in one sentence: `dueline job why`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.core.errors import NotFound
from pipeline.core.job import Ack, AckState, JobStatus, Owned, Run
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.states import PartitionState
from pipeline.follower.job import Emitted, Story, status_of
from pipeline.follower.listing import fold_backlog
from pipeline.follower.values import readable_ack, readable_run, shown_instant
from pipeline.heartbeat import Seen
from pipeline.ports import Reader, Record
from pipeline.queues import read_states

SERIAL_WINDOW_MS = 3_600_000
"""How long before a run those of its serial group are looked for."""
_SKIPS = {
    "misfire": "it was missed, and its policy does not make it up",
    "catch_up": "it was missed for longer than its catch-up window",
    "overlap": "an earlier occurrence still ran",
    "cancelled": "it was cancelled while it waited for an earlier one",
    "buffer_full": "as many as may wait for an earlier occurrence did already",
    "paused": "the schedule was paused",
    "edited": "the schedule was changed before it was due",
    "deleted": "the schedule was deleted before it fired",
    "removed": "the schedule was removed by its app before it fired",
    "max_occurrences": "as many as were wanted had fired",
    "end": "the schedule had come to its end",
}
"""Reasons of a skip in words."""
_RUNNING = PartitionState.RUNNING.value


class Reason(NamedTuple):
    """`waits_for`: command | time | retry | owner | turn | overlap | queue | handler | worker | serial | attempt, or
    None when it waits for nothing any more (schemas/cli/job_why.json)."""

    status: JobStatus | None
    waits_for: str | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a reason is found in: the topics, the live processes, and the store's time in ms."""

    reader: Reader
    names: Names
    layout: Layout
    processes: list[Seen]
    now: int

    def owner(self, topic: str, partition: int) -> tuple[Seen, Owned] | None:
        """The live process that says it owns a partition; one that runs it before one that still restores."""
        found = [
            (seen, owned)
            for seen in self.processes
            for owned in seen.heartbeat.owned
            if (owned.topic, owned.partition) == (topic, partition)
        ]
        return max(found, key=lambda pair: pair[1].state == _RUNNING, default=None)

    def process(self, name: str) -> Seen | None:
        """The live process of that name."""
        return next((seen for seen in self.processes if seen.heartbeat.process == name), None)

    def workers(self, queue: str) -> list[Seen]:
        """Live workers of a queue."""
        return [seen for seen in self.processes if queue in seen.heartbeat.queues]


def reason_of(story: Story, around: Surroundings) -> Reason:
    """The one thing that stands between the job and its next step."""
    if not story.trail.known and not story.runs:
        return _not_executed(story, around)
    match status := status_of(story):
        case JobStatus.PENDING | JobStatus.RETRYING:
            return Reason(status, *_to_come(story, around))
        case JobStatus.QUEUED:
            return Reason(status, *_queued(story, around))
        case JobStatus.RUNNING:
            return Reason(status, *_attempted(story, around))
        case _:
            return Reason(status, None, _over(status, story))


def _not_executed(story: Story, around: Surroundings) -> Reason:
    home = around.layout.home(story.trail.id)
    missing = _without_owner(home, around)
    text = "it waits for its create command to be executed" + (f"; {missing}" if missing else "")
    return Reason(None, "owner" if missing else "command", text)


# -- pending and retrying -----------------------------------------------------------------------------------


def _to_come(story: Story, around: Surroundings) -> tuple[str, str]:
    run = story.trail.pending or story.trail.retry
    retrying = story.trail.pending is None
    after = f" after {_failure(story)}" if retrying else ""
    if run is None:
        return "retry", f"its next run is being written{after}"
    home = around.layout.home(story.trail.id)
    missing = _without_owner(home, around)
    when = shown_instant(run.due_at)
    if story.trail.behind is not None:
        waits = f"it was meant for {when} and waits for {story.trail.behind} of its schedule to end"
        return "overlap", waits + (f"; {missing}" if missing else "")
    if run.due_at > around.now:
        waits = f"it retries{after} at {when}" if retrying else f"it waits for its time, {when}"
        left = f", in {_spoken(run.due_at - around.now)}"
        return "retry" if retrying else "time", waits + left + (f"; {missing}" if missing else "")
    late = f"it is due since {when}, {_spoken(around.now - run.due_at)} ago{after}"
    if missing:
        return "owner", f"{late}; {missing}"
    return "turn", f"{late}; {_behind(run, home, around)}"


def _without_owner(home: int, around: Surroundings) -> str | None:
    """What is wrong with the owner of a partition of `jobs`; None if it runs."""
    found = around.owner(around.names.jobs, home)
    if found is None:
        return f"no live dispatcher owns its partition {home}: start `dueline dispatcher`"
    seen, owned = found
    if owned.state != _RUNNING:
        return f"its owner, dispatcher {seen.heartbeat.process}, is {owned.state} its partition {home}"
    return None


def _behind(run: Run, home: int, around: Surroundings) -> str:
    before = fold_backlog(around.reader.read(around.names.jobs, home), run.due_at).pending
    ahead = f"{before} due before it" if before else "nothing due before it"
    return f"the owner of its partition {home} takes due jobs in order and by the rate of its queue: {ahead}"


# -- fired --------------------------------------------------------------------------------------------------


def _queued(story: Story, around: Surroundings) -> tuple[str, str]:
    fired = story.runs[max(story.runs)] if story.runs else None
    if fired is None:
        return "worker", "it fired; its run is not readable yet, or no longer kept"
    run = fired.run
    told = f"run {run.run} fired at {shown_instant(fired.at)}{_asked_to_stop(story)}"
    if (paused := _paused(run.queue, around)) is not None:
        return "queue", f"{told}; {paused}"
    workers = around.workers(run.queue)
    if not workers:
        return "worker", f"{told}; no live worker takes the queue {run.queue}: start `dueline worker`"
    if not any(run.handler in seen.heartbeat.handlers for seen in workers):
        return "handler", f"{told}; no live worker of the queue {run.queue} knows the handler {run.handler}"
    place = around.layout.work_partition(run.queue, run.serial or run.job_id)
    if run.serial is not None and (others := _serial_before(fired, place, around)):
        return "serial", f"{told}; it is behind {_runs(others)} of its serial group {run.serial}"
    return _held_by(run, place, told, around)


def _paused(queue: str, around: Surroundings) -> str | None:
    state = read_states(around.reader, around.names.meta).get(queue)
    if state is None or state.pause is None:
        return None
    pause = state.pause
    why = f": {pause.reason}" if pause.reason else ""
    who = f" by {pause.by} since {shown_instant(pause.at)}" if pause.by else ""
    return f"the queue {queue} is paused{who}{why}"


def _held_by(run: Run, place: int, told: str, around: Surroundings) -> tuple[str, str]:
    found = around.owner(around.names.work(run.queue), place)
    if found is None:
        return "worker", f"{told}; no live worker owns partition {place} of the queue {run.queue} yet"
    seen, owned = found
    name = seen.heartbeat.process
    if run.handler not in seen.heartbeat.handlers:
        return "handler", f"{told}; worker {name}, which has it, does not know the handler {run.handler}"
    if owned.state != _RUNNING:
        return "worker", f"{told}; worker {name} is {owned.state} partition {place} of the queue {run.queue}"
    busy = len(seen.heartbeat.in_flight)
    return "worker", f"{told}; worker {name} has it and starts it in its turn; it runs {_runs(busy)} now"


def _asked_to_stop(story: Story) -> str:
    stop = story.trail.stop
    if stop is None or (stop.run or 0) < story.highest_run:
        return ""
    return f"; it was asked to stop at {shown_instant(stop.at)}"


def _serial_before(fired: Emitted, place: int, around: Surroundings) -> int:
    """Runs of its serial group that stand before it and have no terminal ack."""
    queue, since = fired.run.queue, fired.at - SERIAL_WINDOW_MS
    try:
        work = around.reader.read(around.names.work(queue), place, since_ms=since)
        before = _group_before(work, fired)
        acks = around.reader.read(around.names.acks(queue), place, since_ms=since)
        return len(before - _ended(acks)) if before else 0
    except NotFound:
        return 0


def _group_before(work: Iterable[Record], fired: Emitted) -> set[tuple[str, int]]:
    found = set()
    for record in work:
        if (record.offset() or 0) >= fired.offset:
            break
        run = readable_run(record.value())
        if run is not None and run.serial == fired.run.serial:
            found.add((run.occurrence_id, run.run))
    return found


def _ended(acks: Iterable[Record]) -> set[tuple[str, int]]:
    terminal = (readable_ack(r.value()) for r in acks if (r.key() or b"").startswith(b"t/"))
    return {(ack.occurrence_id, ack.run) for ack in terminal if ack is not None}


def _attempted(story: Story, around: Surroundings) -> tuple[str, str]:
    last = story.last
    assert last is not None, "a job is running by its last ack"
    started = shown_instant(last.started_at if last.started_at is not None else last.at)
    told = f"worker {last.worker} started attempt {last.attempt} of run {last.run} at {started}"
    if around.process(last.worker) is None:
        return "worker", f"{told} and is not alive any more; the next owner of its partition starts it again"
    return "attempt", f"{told} and is running it{_held(story, last, around)}{_asked_to_stop(story)}"


def _held(story: Story, last: Ack, around: Surroundings) -> str:
    """That another worker has its partition by now, and leaves the run to who has started it (DESIGN §7, lease)."""
    work = story.trail.work
    owner = None if work is None else around.owner(around.names.work(work.queue), work.partition)
    if work is None or owner is None or owner[0].heartbeat.process == last.worker:
        return ""
    return f"; worker {owner[0].heartbeat.process} owns its partition now and waits for that"


# -- over ---------------------------------------------------------------------------------------------------


def _over(status: JobStatus, story: Story) -> str:
    last = story.last
    match status:
        case JobStatus.CANCELLED if last is None and story.trail.skipped is not None:
            return f"it was cancelled before it fired: {in_words(story.trail.skipped)}"
        case JobStatus.CANCELLED if last is None:
            return "it was cancelled before it fired; it waits for nothing"
        case JobStatus.STOPPED:
            return "it was stopped after it fired: no further run will start"
        case JobStatus.SKIPPED:
            return f"its schedule skipped it: {in_words(story.trail.skipped or '')}"
        case _ if last is None:
            return f"it is {status}; it waits for nothing"
    at = f"{status} in run {last.run}, attempt {last.attempt}, at {shown_instant(last.at)}"
    return f"it {at}" if status is JobStatus.SUCCEEDED else f"it is {at}{_error(last)}"


def in_words(skipped: str) -> str:
    """Why an occurrence of a schedule did not fire; a reason of a later version as it is."""
    return _SKIPS.get(skipped, skipped)


def _failure(story: Story) -> str:
    failed = [ack for ack in story.acks if ack.state in (AckState.RETRYING, AckState.FAILED)]
    if not failed:
        return "an earlier run"
    return f"run {failed[-1].run}{_error(failed[-1])}"


def _error(ack: Ack) -> str:
    if ack.error is None:
        return ""
    lines = ack.error.message.splitlines()
    return f": {ack.error.type}: {lines[0] if lines else ''}".rstrip(": ")


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _spoken(ms: int) -> str:
    """A length of time in its two largest units."""
    if ms < 1_000:
        return f"{ms} ms"
    amounts, seconds = [], ms // 1_000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        amount, seconds = divmod(seconds, size)
        amounts.append((amount, unit))
    shown = next(n for n, (amount, _) in enumerate(amounts) if amount)
    return " ".join(f"{amount} {unit}" for amount, unit in amounts[shown : shown + 2] if amount)
