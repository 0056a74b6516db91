"""Emitting many occurrences once more, for a replay (DESIGN §4, H29).

Each is emitted as a requeue with `on_conflict=reject` would emit it, so asking twice runs it once; but in bulk, in the
lane of a backlog, and with more care for what people decided meanwhile: nothing that was stopped is taken up again, and
no key is shared with the job that holds it now. Nor is an earlier job of a key run again where a later one is known to
have run: what is remembered of that are its highest runs (`h/`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from pipeline import codec
from pipeline.codec.wire import write_instant, write_map
from pipeline.commands.again import mark, marked
from pipeline.commands.change import reschedule
from pipeline.core import keys
from pipeline.core.errors import DuelineError, InvalidInput
from pipeline.core.ids import KeyedId, parse_id
from pipeline.core.job import Command, Event, ReplayBatch, Run
from pipeline.core.token import LAST_RUN
from pipeline.core.topics import WORK_RETENTION_MS
from pipeline.emission import Emission
from pipeline.filing import DETAIL_LIMIT, TO_FIRE, file_run
from pipeline.found import STOPPED, Found
from pipeline.portion import REPLAY, REPLAY_HEADER, Portion, queue_of
from pipeline.ports import Action, Entry, Headers, Put
from pipeline.runs import PENDING, emit_run, highest_value, holder_by_id, occurrence_of
from pipeline.view import OUTCOME, UNTIL, View

REPLAYED, BROUGHT_FORWARD, SUPERSEDED, KEY_TAKEN, REFUSED = (
    "replayed",
    "brought_forward",
    "superseded",
    "key_taken",
    "refused",
)
"""What becomes of an occurrence, beside `pending` and `stopped`: emitted; its waiting retry is due now; a later run was
emitted than the one that was seen; another job holds its key, or had it since; it can never be emitted."""
EMITTED = (REPLAYED, BROUGHT_FORWARD)
PAGE = 100
RUN_CEILING = 2_090_000
"""Bytes of a run that fits the messages of its work topic, with its key."""


def replay(entry: Entry, emission: Emission) -> None:
    """Settle the next runs of the replay in `entry`, and answer it once none is left."""
    command = codec.COMMAND.reread(entry.value)
    batch = codec.REPLAY_BATCH.reread(command.payload or b"")
    portion = _settled(Portion.of(entry.detail), command, batch, emission)
    if portion.left:
        emission.view.put(entry._replace(detail=portion.detail))
        return
    event = _answer(command, portion, emission)
    told = emission.tell(entry.record_key[2:], event)
    emission.end(entry, "executed", [(OUTCOME, told)])
    emission.answered.append((event, -1))


def _settled(portion: Portion, command: Command, batch: ReplayBatch, emission: Emission) -> Portion:
    """What is left after as many runs were emitted as may be. One that is not emitted costs the lane nothing; and a
    portion that changed nothing would never be applied."""
    counts, problem, room = Counter(portion.counts), portion.problem, portion.take
    about = About(command, batch.dead, emission)
    first = len(batch.runs) - portion.left
    done = 0
    for value in batch.runs[first:]:
        if not room:
            break
        done += 1
        try:
            outcome = _again(value, about)
        except DuelineError as error:
            outcome, problem = REFUSED, problem or str(error)[: DETAIL_LIMIT // 2]
        counts[outcome] += 1
        room -= outcome in EMITTED
    left = portion.left - done
    return Portion(portion.queue, left, left, counts, problem)


class Target(NamedTuple):
    """Where the plain runs of one work partition go: its topic and number, and what is remembered of each."""

    topic: str
    partition: int
    highest: bytes


class About:
    """What all runs of a portion have in common."""

    __slots__ = (
        "command", "dead", "due_at", "emission", "headers", "marked", "newest", "queue", "retries", "stops", "targets",
        "told", "until", "written",
    )  # fmt: skip

    def __init__(self, command: Command, dead: bool, emission: Emission) -> None:
        self.command, self.dead, self.emission = command, dead, emission
        self.queue = queue_of(command)
        self.headers = {REPLAY_HEADER: command.detail.get(REPLAY, command.command_id)}
        self.due_at, self.written = write_instant(emission.now), write_map(self.headers)
        """The due time and the headers of their next runs, as Avro."""
        self.stops, self.retries = map(emission.view.some, (keys.STOPPED, keys.RETRY))
        """Whether there are any at all here: mostly not, and a look-up costs as much as all else about a run."""
        self.newest: dict[str, int] = {}
        """By the id of a job with a key: the highest incarnation that is known to have a later run."""
        self.targets: dict[int, Target] = {}
        self.until = emission.now + WORK_RETENTION_MS
        self.told: Headers = [(UNTIL, b"%d" % self.until)]
        self.marked = marked(2)

    def entry(self, key: bytes, some: bool) -> Entry | None:
        view = self.emission.view
        return view.entry(key) if some else view.changed(key)

    def target(self, partition: int) -> Target:
        found = self.targets.get(partition)
        if found is None:
            topic = self.emission.site.names.work(self.queue)
            found = Target(topic, partition, highest_value(2, f"{self.queue}/{partition}"))
            self.targets[partition] = found
        return found


def _again(value: bytes, about: About) -> str:
    """Emit the next run of an occurrence, if nothing speaks against it. InvalidInput and Undecodable if none can be."""
    if _plain_again(value, about):
        return REPLAYED
    emission, view = about.emission, about.emission.view
    run, place = _next(value, about)
    occurrence, seen = run.occurrence_id, run.run
    highest = view.highest_run(occurrence)
    if seen < highest:
        return SUPERSEDED
    if about.entry(keys.stopped_key(occurrence), about.stops) is not None:
        return STOPPED
    retry = about.entry(keys.retry_key(occurrence, highest), about.retries)
    if retry is not None and retry.action in TO_FIRE:
        found = Found(job_id=occurrence, occurrence_id=occurrence, retry=retry)
        reschedule(replace(about.command, due_at=emission.now), found, emission)
        return BROUGHT_FORWARD
    if occurrence.startswith("k") and (held := _held(occurrence, about)):
        return held
    number = max(seen, highest) + 1
    if number > LAST_RUN:
        raise InvalidInput("run", f"{seen} has no next one that has a token")
    emit_run(occurrence, number, place, _encoded(replace(run, run=number)), emission)
    if about.dead:
        mark(occurrence, number, emission)
    return REPLAYED


def _held(occurrence: str, about: About) -> str:
    """Whether the key of this job belongs to another one by now, or the job is still to fire for the first time; empty
    if neither. Of an anonymous job the latter cannot be: whoever has seen its run has seen that it fired."""
    job_id, _, incarnation = occurrence.partition(".")
    holder = holder_by_id(job_id, about.emission)
    if holder is not None:
        if occurrence_of(holder[0].record_key, holder[1]) != occurrence.encode():
            return KEY_TAKEN
        return PENDING if holder[1].run is not None else ""
    if job_id not in about.newest:
        about.newest[job_id] = _newest(job_id, about.emission.view)
    if int(incarnation) < about.newest[job_id]:
        return KEY_TAKEN
    about.newest[job_id] = int(incarnation)
    return ""


def _newest(job_id: str, view: View) -> int:
    """The highest incarnation of a job with a key of which the index has a run beside its first; -1: of none."""
    prefix = after = keys.highest_key(f"{job_id}.")
    newest = -1
    while page := view.page(after, PAGE):
        for entry in page:
            if not entry.record_key.startswith(prefix):
                return newest
            newest = max(newest, int(entry.record_key.removeprefix(prefix)))
        after = page[-1].record_key
    return newest


# -- the next run ---------------------------------------------------------------------------------------------


def _plain_again(value: bytes, about: About) -> bool:
    """Emit run 2 of an anonymous job that has nothing special, which is nearly every one, with its bytes copied: as the
    long way would, at a third of the cost. False for whatever there may be more to say about."""
    emission, view = about.emission, about.emission.view
    found = codec.plain_again(value, about.due_at, about.written)
    layout = emission.site.layout
    if found is None or found[1] != about.queue or about.queue not in layout.queues:
        return False
    id_, _, again = found
    if len(again) > RUN_CEILING:
        return False
    home, work = layout.route(id_, about.queue)
    entries, highest, stop, retry = view.delta.entries, b"h/" + id_, b"x/" + id_, b"r/%b/1" % id_
    if home != emission.number or stop in entries or retry in entries or highest in entries:
        return False
    if view.entry(highest) or (about.stops and view.entry(stop)) or (about.retries and view.entry(retry)):
        return False
    target = about.target(work)
    emission.puts += (
        Put(target.topic, work, id_, again),
        Put(emission.site.names.jobs, emission.number, highest, target.highest, about.told),
    )
    emission.own.append(highest)
    entries[highest] = None, Entry(highest, about.until, -1, Action.EXPIRE, target.highest)
    emission.fired += 1
    if about.dead:
        emission.puts.append(Put(emission.site.names.dead, emission.number, id_, None, about.marked))
    return True


def _next(value: bytes, about: About) -> tuple[Run, str]:
    """The run as it is emitted next but for its number, and its place: its idempotency key is the same, its failures
    are forgotten. The schedule of an occurrence is told when it ends, but does not see it as open: a replay of many
    would keep its grid from firing."""
    run, emission = codec.RUN.decode(value), about.emission
    parsed = parse_id(run.occurrence_id)
    job_id = parsed.id if isinstance(parsed, KeyedId) else run.occurrence_id
    if run.job_id != job_id or (isinstance(parsed, KeyedId) and parsed.incarnation is None):
        raise InvalidInput("occurrence_id", "is none of its job")
    _check(emission.site.layout.home(job_id) == emission.number, run.queue, about)
    again = replace(
        run, due_at=emission.now, failures=0, history=(), headers={**run.headers, **about.headers}
    )
    filed = file_run(emission.site, again, emission.now)
    if filed.problem:
        raise InvalidInput(*filed.problem.split(": ", 1))
    return again, filed.place


def _check(at_home: bool, queue: str, about: About) -> None:
    """Whoever may append to a work topic can put anything there, and anybody can ask for anything."""
    if not at_home:
        raise InvalidInput("job_id", "has another home")
    if queue != about.queue:
        raise InvalidInput("queue", "is not that of the command")


def _encoded(run: Run) -> bytes:
    value = codec.RUN.encode(run)
    if len(value) > RUN_CEILING:
        raise InvalidInput("payload", "leaves no room for a further run")
    return value


def _answer(command: Command, portion: Portion, emission: Emission) -> Event:
    about = {"verb": REPLAY, REPLAY: command.detail.get(REPLAY, "")}
    if command.requested_by is not None:
        about["requested_by"] = command.requested_by[:DETAIL_LIMIT]
    return Event(
        id=command.command_id,
        kind="answer",
        at=emission.now,
        command_id=command.command_id,
        outcome=REPLAYED,
        reason=portion.problem or None,
        detail={**about, **{name: str(count) for name, count in portion.counts.items()}},
    )
