"""A full read of an installation's topics after a storm, held against what the clients were promised."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from nemesis import storm_wire as wire
from nemesis.storm_clients import Ledger, Sent

FRAME = b"\xc3\x01"


@dataclass(slots=True)
class Row:
    """A committed record."""

    partition: int
    offset: int
    key: str
    value: bytes | None
    at: int
    headers: dict[str, bytes]


def read_all(bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed") -> list[Row]:
    """Every record of a topic up to its end as it is now, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "storm-check",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    rows, open_ = [], set(range(partitions))
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in open_])
        while open_:
            for message in consumer.consume(5_000, 2):
                if message.error() is not None:
                    open_.discard(message.partition() or 0)
                    continue
                rows.append(
                    Row(
                        message.partition() or 0,
                        message.offset() or 0,
                        (message.key() or b"").decode("utf-8", "replace"),
                        message.value() or None,
                        message.timestamp()[1],
                        {name: value or b"" for name, value in message.headers() or ()},
                    )
                )
    finally:
        consumer.close()
    return sorted(rows, key=lambda row: (row.partition, row.offset))


def undecided(bootstrap: str, topics: dict[str, int]) -> list[str]:
    """Partitions with an open transaction."""
    found = []
    ends: dict[str, dict[tuple[str, int], int]] = {}
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "storm-ends", "isolation.level": isolation}
        )
        ends[isolation] = {
            (topic, n): consumer.get_watermark_offsets(TopicPartition(topic, n), 10)[1]
            for topic, count in topics.items()
            for n in range(count)
        }
        consumer.close()
    for place, end in ends["read_uncommitted"].items():
        if ends["read_committed"][place] != end:
            found.append(f"{place[0]}/{place[1]}")
    return found


@dataclass(slots=True)
class Occurrence:
    """What the answers say of one occurrence, in the order of the answers."""

    due: int | None
    payload: Any
    unique: str = ""
    state: str = "pending"
    created_at: int = 0
    changed_at: int = 0
    dues: set[int] = field(default_factory=set)
    """With further runs: any time it was given, since an answer does not say which run it moved."""


@dataclass(slots=True)
class Verdict:
    jobs: int = 0
    fired: int = 0
    found: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    outcomes: Counter[str] = field(default_factory=Counter)
    lateness: list[tuple[int, str]] = field(default_factory=list)
    dead: Counter[str] = field(default_factory=Counter)

    def say(self, kind: str, text: str) -> None:
        self.found[kind].append(text)


class Check:
    def __init__(self, bootstrap: str, prefix: str, layout: wire.Layout, ledger: Ledger, until: int) -> None:
        """`until`: what was due by then must have fired."""
        self.ledger, self.layout, self.until, self.verdict = ledger, layout, until, Verdict()
        self.jobs = read_all(bootstrap, f"{prefix}.jobs", layout.partitions)
        self.events = read_all(bootstrap, f"{prefix}.events", layout.partitions)
        self.dead = read_all(bootstrap, f"{prefix}.dead", 1)
        self.work = {
            queue: read_all(bootstrap, f"{prefix}.work.{queue}", count)
            for queue, count in layout.queues.items()
        }
        self.runs: dict[tuple[str, int], list[tuple[dict[str, Any], Row, str]]] = defaultdict(list)
        self.occurrences: dict[str, Occurrence] = {}
        self.holders: dict[str, str] = {}
        self.retried = {occurrence for occurrence, _ in ledger.retries}
        self.requeued: set[str] = set()
        self.answers: dict[str, list[tuple[Row, dict[str, Any]]]] = defaultdict(list)

    def run(self) -> Verdict:
        self._read_work()
        self._read_answers()
        self._play_answers()
        self._fired_as_promised()
        self._keys()
        self._ends()
        self._dead()
        return self.verdict

    # -- reading ------------------------------------------------------------------------------------------

    def _read_work(self) -> None:
        for queue, rows in self.work.items():
            for row in rows:
                run = wire.read(row.value or b"")
                self.runs[run["occurrence_id"], run["run"]].append((run, row, queue))
                name = f"{run['occurrence_id']} run {run['run']} at {queue}/{row.partition}/{row.offset}"
                if row.at < run["due_at"]:
                    self.verdict.say("early", f"{name}: appended {row.at}, due {run['due_at']}")
                if row.key != run["occurrence_id"] or run["queue"] != queue:
                    self.verdict.say("odd", f"{name}: key {row.key}, queue {run['queue']}")
                if row.partition != self.layout.work(queue, run["serial"] or run["job_id"]):
                    self.verdict.say("odd", f"{name}: wrong work partition")
        for (occurrence, number), found in self.runs.items():
            if len(found) > 1:
                places = [f"{queue}/{row.partition}/{row.offset} at {row.at}" for _, row, queue in found]
                self.verdict.say("doubled", f"{occurrence} run {number}: {places}")

    def _read_answers(self) -> None:
        for row in self.events:
            event = wire.read(row.value or b"")
            if event["kind"] == "answer":
                self.answers[event["command_id"]].append((row, event))
        for id_, found in self.answers.items():
            self.verdict.outcomes[found[0][1]["outcome"]] += 1
            told = {(event["outcome"], event["occurrence_id"], event["run"]) for _, event in found}
            if len(told) > 1:
                self.verdict.say("contradiction", f"command {id_} was answered in several ways: {told}")
            sent = self.ledger.commands.get(id_)
            if sent is not None and len(found) > max(1, len(sent.places)):
                self.verdict.say(
                    "odd", f"command {id_}, put {len(sent.places)} times, has {len(found)} answers"
                )
        for id_, sent in self.ledger.commands.items():
            if sent.places and id_ not in self.answers:
                self.verdict.say("lost", f"command {id_} {sent.fields} at {sent.places}: no answer")

    # -- what the answers say, in order --------------------------------------------------------------------

    def _play_answers(self) -> None:
        for job in self.ledger.jobs.values():
            if job.offset >= 0:
                self.occurrences[job.id] = Occurrence(job.due, json.loads(job.payload), created_at=job.put_at)
        first = {id_: found[0] for id_, found in self.answers.items()}
        # A create without a key answers where it stood, so it is played before what was asked of its job.
        ordered = sorted(
            first.values(), key=lambda one: (not self._plain_create(one[1]), one[0].partition, one[0].offset)
        )
        last: dict[tuple[int, str], tuple[int, str]] = {}
        for row, event in ordered:
            sent = self.ledger.commands.get(event["command_id"])
            if sent is None and f"c/{event['command_id']}" in self.ledger.rubbish_keys:
                if event["outcome"] != "refused":
                    self.verdict.say("contradiction", f"rubbish was not refused: {event}")
                continue
            if sent is None:
                self.verdict.say("odd", f"an answer to nobody: {event}")
                continue
            if not self._plain_create(event):
                self._in_order(row, event, sent, last)
            self._play(row, event, sent)

    def _plain_create(self, event: dict[str, Any]) -> bool:
        return (event["job_id"] or "k")[0] == "j" and event["detail"].get("verb", "") == "create"

    def _in_order(
        self, row: Row, event: dict[str, Any], sent: Sent, last: dict[tuple[int, str], tuple[int, str]]
    ) -> None:
        """Commands on one job are executed in the order of the log."""
        if not sent.places or len(sent.places) > 1 or sent.places[0][0] != sent.home:
            return
        place = (row.partition, event["job_id"] or "")
        offset = sent.places[0][1]
        if offset < last.get(place, (-1, ""))[0]:
            self.verdict.say(
                "order", f"{event['job_id']}: {event['command_id']} at {offset} answered after {last[place]}"
            )
        last[place] = (offset, event["command_id"])

    def _play(self, row: Row, event: dict[str, Any], sent: Sent) -> None:
        outcome, name, verb = event["outcome"], event["occurrence_id"], sent.fields["verb"]
        if row.partition != sent.home and not self._plain_create(event):
            self.verdict.say("odd", f"answer on events/{row.partition}, home {sent.home}: {event}")
        if verb == "create":
            self._play_create(event, sent)
            return
        occurrence = self.occurrences.get(name or "")
        wrong = f"{verb} {sent.fields} answered {outcome} ({event['reason']}) at events/{row.partition}/{row.offset}"
        if occurrence is None:
            if name in self.ledger.jobs or outcome in ("not_found", "fired", "cancelled", "stopped"):
                return
            self.verdict.say("contradiction", f"{wrong}: unknown occurrence {name}")
            return
        wrong += f"; {name} is {occurrence.state}"
        if name in self.retried or name in self.requeued:
            self._play_later_run(event, sent, occurrence)
            return
        pending = occurrence.state == "pending"
        match outcome:
            case "cancelled":
                if occurrence.state not in ("pending", "cancelled"):
                    self.verdict.say("contradiction", wrong)
                occurrence.state = "cancelled"
            case "rescheduled" | "updated":
                if not pending:
                    self.verdict.say("contradiction", wrong)
                if outcome == "updated":
                    occurrence.payload = json.loads(sent.fields["payload"])
                else:
                    occurrence.due = int(event["detail"]["due_at"])
                    if sent.fields.get("due_at") not in (None, occurrence.due):
                        self.verdict.say("contradiction", f"{wrong}: due {occurrence.due}")
                occurrence.changed_at = event["at"]
            case "fired":
                if occurrence.state == "cancelled" or (name, 1) not in self.runs:
                    self.verdict.say("contradiction", wrong)
                occurrence.state = "fired"
            case "released":
                if (name, 1) not in self.runs:
                    self.verdict.say("contradiction", wrong)
                occurrence.state = "released"
            case "requeued":
                self.requeued.add(name or "")
            case "pending":
                if not pending:
                    self.verdict.say("contradiction", wrong)
            case "not_found":
                job = self.ledger.jobs.get(name or "")
                if job is not None and job.elsewhere:
                    self.verdict.outcomes["not_found before it was moved home"] += 1
                elif (name or "j")[0] == "j" or "." in (name or ""):
                    self.verdict.say("contradiction", wrong)
            case _:
                self.verdict.say("odd", wrong)

    def _play_later_run(self, event: dict[str, Any], sent: Sent, occurrence: Occurrence) -> None:
        match event["outcome"]:
            case "requeued":
                self.requeued.add(event["occurrence_id"])
            case "stopped" | "released":
                occurrence.state = event["outcome"]
            case "rescheduled":
                occurrence.dues.add(int(event["detail"]["due_at"]))
            case "updated":
                occurrence.payload = json.loads(sent.fields["payload"])
            case "cancelled" if occurrence.state == "pending":
                occurrence.state = "cancelled"

    def _play_create(self, event: dict[str, Any], sent: Sent) -> None:
        outcome, name, fields = event["outcome"], event["occurrence_id"], sent.fields
        payload = json.loads(fields.get("payload", b"{}"))
        due = int(event["detail"]["due_at"]) if "due_at" in event["detail"] else None
        if "due_at" in fields and outcome in ("created", "replaced") and due != fields["due_at"]:
            self.verdict.say("contradiction", f"asked for {fields['due_at']}, created due {due}: {event}")
        if "key" not in fields:
            self.occurrences.setdefault(name, Occurrence(due, payload, created_at=event["at"]))
            return
        key = fields["key"]
        holder = self.holders.get(key)
        held = self.occurrences.get(holder or "")
        if outcome == "created":
            if held is not None and held.state in ("pending", "fired"):
                self._freed(key, str(holder), held, event)
            if name in self.occurrences:
                self.verdict.say("contradiction", f"created twice: {event}")
            self.holders[key] = name
            self.occurrences[name] = Occurrence(
                due, payload, fields.get("unique") or "finished", created_at=event["at"]
            )
            return
        if name != holder or held is None or held.state in ("cancelled", "released", "stopped"):
            self.verdict.say("contradiction", f"{event}, but {key!r} is held by {holder}: {held}")
            return
        match outcome:
            case "replaced" | "debounced":
                if outcome == "replaced":
                    held.payload = payload
                if held.state != "pending":
                    self.verdict.say("contradiction", f"{event}: {held}")
                held.due, held.changed_at = due, event["at"]
            case "existing" | "rejected":
                self._still_held(name, sent, event, held)

    def _freed(self, key: str, holder: str, held: Occurrence, event: dict[str, Any]) -> None:
        """Whether what held the key let go of it before the next one was created."""
        fired = (holder, 1) in self.runs
        done = any(occurrence == holder for occurrence, _ in self.ledger.done)
        if fired and (done or held.unique != "finished"):
            if held.unique == "3s" and not done and event["at"] < held.created_at + 3_000:
                self.verdict.say("uniqueness", f"{key!r} held 3 s by {holder}: {held}, created anew: {event}")
            return
        self.verdict.say(
            "uniqueness", f"{key!r} held by {holder}: {held} (fired: {fired}), created anew: {event}"
        )

    def _still_held(self, name: str, sent: Sent, event: dict[str, Any], held: Occurrence) -> None:
        if held.unique != "finished" or name in self.retried or name in self.requeued:
            return  # held for a duration, it is not freed by its end
        if not sent.places or sent.places[0][0] != sent.home:
            return
        done = self.ledger.done.get((name, 1), -1)
        if 0 <= done < sent.places[0][1]:
            self.verdict.say("contradiction", f"{event}, but it was done at {done}, before {sent.places}")

    # -- what fired -----------------------------------------------------------------------------------------

    def _fired_as_promised(self) -> None:
        verdict = self.verdict
        verdict.jobs = len(self.occurrences) + len(self.ledger.lines)
        known = set(self.occurrences) | set(self.ledger.jobs)
        for name, occurrence in self.occurrences.items():
            found = self.runs.get((name, 1), [])
            where = [f"{queue}/{row.partition}/{row.offset} at {row.at}" for _, row, queue in found]
            if occurrence.state == "cancelled":
                if found:
                    verdict.say("contradiction", f"cancelled, but fired: {name} {where}")
                continue
            if not found:
                if occurrence.due is not None and occurrence.due <= self.until:
                    verdict.say("lost", f"{name} never fired: {occurrence}")
                continue
            run, row, _ = found[0]
            verdict.fired += 1
            if run["due_at"] in occurrence.dues:
                occurrence.due = run["due_at"]
            if (run["due_at"], json.loads(run["payload"])) != (occurrence.due, occurrence.payload):
                verdict.say(
                    "contradiction",
                    f"{name} fired due {run['due_at']} with {run['payload']}, answered {occurrence}",
                )
            since = max(run["due_at"], occurrence.created_at, occurrence.changed_at)
            verdict.lateness.append((row.at - since, name))
        markers = Counter(
            json.loads(found[0][0]["payload"])["m"]
            for (_, number), found in self.runs.items()
            if number == 1 and found[0][0]["handler"] == "storm.line"
        )
        for marker, due in self.ledger.lines.items():
            if due <= self.until and markers[marker] != 1:
                verdict.say(
                    "lost" if not markers[marker] else "doubled", f"line {marker}: {markers[marker]} runs"
                )
        for name, number in self.runs:
            run = self.runs[name, number][0][0]
            if name not in known and run["handler"] != "storm.line":
                verdict.say("odd", f"nobody asked for {name} run {number}")
        for (name, number), (offset, due) in self.ledger.retries.items():
            state = self.occurrences[name].state if name in self.occurrences else ""
            if offset < 0 or due > self.until or name in self.requeued or state in ("stopped", "released"):
                continue
            if (name, number) not in self.runs and not self._stopped(name):
                verdict.say("lost", f"retry {name} run {number} put at {offset}, due {due}")

    def _stopped(self, name: str) -> bool:
        return any(
            event["occurrence_id"] == name and event["outcome"] in ("stopped", "rescheduled", "cancelled")
            for found in self.answers.values()
            for _, event in found
        )

    def _keys(self) -> None:
        """At no time do two incarnations of a key under unique=finished stand emitted and not ended: by the answers
        (above), and here by the state that owners wrote."""
        held: dict[str, int] = {}
        for row in self.jobs:
            if not row.key.startswith("k/"):
                continue
            incarnation = -1 if row.value is None else wire.read(row.value)["incarnation"]
            before = held.get(row.key, -1)
            if row.value is not None and before >= 0 and incarnation < before:
                self.verdict.say(
                    "uniqueness", f"{row.key}: incarnation {incarnation} after {before} at {row.offset}"
                )
            held[row.key] = incarnation if incarnation >= 0 else before

    def _ends(self) -> None:
        """What stands on `jobs` in the end: only what is still to come."""
        last: dict[tuple[int, str], Row] = {(row.partition, row.key): row for row in self.jobs}
        for (partition, key), row in last.items():
            kind, _, name = key.partition("/")
            place = f"{key} at jobs/{partition}/{row.offset}"
            if row.value is None:
                end, work = row.headers.get("end", b""), row.headers.get("work", b"").decode()
                if kind in "ja" and end == b"fired":
                    found = self.runs.get((name, 1))
                    at = {f"{queue}/{one.partition}" for _, one, queue in found or ()}
                    if work not in at:
                        self.verdict.say("contradiction", f"{place} says fired at {work!r}, is at {at}")
                if kind in "ja" and end == b"cancelled" and (name, 1) in self.runs:
                    self.verdict.say("contradiction", f"{place} says cancelled, but fired")
            elif (
                row.value[:2] != FRAME
                or kind in ("c", "d")
                or (kind == "r" and wire.read(row.value)["due_at"] <= self.until)
            ):
                self.verdict.say("left over", place)
            elif kind in ("j", "a"):
                due = wire.read(row.value)["due_at"]
                if due <= self.until or (name, 1) in self.runs:
                    self.verdict.say("left over", f"{place}, due {due}")

    def _dead(self) -> None:
        places: Counter[tuple[int, int]] = Counter()
        for row in self.dead:
            letter = wire.read(row.value or b"")
            self.verdict.dead[letter["reason"].partition(":")[0]] += 1
            place = letter["source_partition"], letter["source_offset"]
            places[place] += 1
            if place not in self.ledger.rubbish:
                self.verdict.say(
                    "odd", f"dead letter for {place}: {letter['reason']} {letter['detail'][:200]}"
                )
        for place, what in self.ledger.rubbish.items():
            if places[place] != 1:
                self.verdict.say("rubbish", f"{what} at {place}: {places[place]} dead letters")
