"""Making the schedules of one source, a file or an app, those that it has now (DESIGN §8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pipeline.client.commands import UNKNOWN, Sent, answer_of, send
from pipeline.client.request import wait_ms
from pipeline.client.schedules import ScheduleChange, ask, changed
from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.handler import Duration
from pipeline.core.job import Event
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.crontab import Plan, plan

if TYPE_CHECKING:
    from pipeline.client.connection import Connection

UNDER_WAY = 200
"""Commands sent before the answer to the first is waited for."""
REFUSED = "refused"
IDS_OF_A_PIECE = 2_000
"""Ids that one command names at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """What the schedules of a source become: the diff for people, and what is asked of the owners for it: specs to put,
    ids to delete."""

    source: str
    version: str
    plan: Plan
    put: tuple[ScheduleSpec, ...]
    delete: tuple[str, ...]


def sync_of(
    current: Sequence[Schedule], wanted: Sequence[ScheduleSpec], *, source: str, version: str = ""
) -> Sync:
    """Of the schedules that there are, and those that the source has. Those which differ by their deploy version alone
    are put too, so that an older worker knows that it is older."""
    diff = plan(current, wanted, source)
    versions = {state.spec.id: state.spec.version for state in current}
    same = [spec for spec in wanted if spec.id in diff.unchanged and versions[spec.id] != spec.version]
    put = (*diff.create, *(update.spec for update in diff.update), *same)
    return Sync(source=source, version=version, plan=diff, put=put, delete=diff.delete)


def create_all(
    connection: Connection, specs: Iterable[ScheduleSpec], wait: Duration
) -> Iterator[ScheduleChange]:
    """Create each that is not there yet: created | existing | refused | unknown; in order."""
    patience = wait_ms(wait)
    sent = (ask(connection, "schedule.create", spec.id, patience, spec=spec) for spec in specs)
    return _answers(connection, sent)


def put_all(
    connection: Connection, specs: Iterable[ScheduleSpec], wait: Duration
) -> Iterator[ScheduleChange]:
    """Have each of them be as it says: created | updated | unchanged | foreign: another source has it, left alone |
    older: left alone for a newer version of its app | refused | unknown; in order."""
    patience = wait_ms(wait)
    sent = (ask(connection, "schedule.put", spec.id, patience, spec=spec) for spec in specs)
    return _answers(connection, sent)


def delete_all(
    connection: Connection, ids: Iterable[str], source: str, version: str, wait: Duration
) -> Iterator[ScheduleChange]:
    """Remove those that are of this source: deleted | not_found | foreign | older | refused | unknown; in order."""
    patience = wait_ms(wait)
    detail = {"source": source, "version": version}
    sent = (ask(connection, "schedule.delete", id_, patience, detail=detail) for id_ in ids)
    return _answers(connection, sent)


def retain_only(
    connection: Connection, ids: Iterable[str], source: str, version: str, wait: Duration
) -> Iterator[ScheduleChange]:
    """Have the owners remove what an app has beside these ids: deleted | older: left alone for a newer version of the
    app | refused, unknown, with no id: of a whole partition. Nobody reads what there is."""
    patience = wait_ms(wait)

    def ask_for(detail: Mapping[str, str]) -> Sent:
        command = connection.requests.about_schedule("schedule.retain", None, detail=detail)
        return send(connection, command, patience, int(detail["partition"]))

    same = {"source": source, "version": version}
    under_way = deque(ask_for({**same, **piece}) for piece in _pieces(connection, ids))
    while under_way:
        sent = under_way.popleft()
        try:
            event = answer_of(connection, sent)
        except (InvalidInput, Refused) as error:
            yield ScheduleChange(id="", outcome=REFUSED, reason=str(error))
            continue
        yield from _retained(event)
        if event is not None and (following := event.detail.get("next")):
            under_way.append(ask_for({**sent.command.detail, "after": following}))


def _pieces(connection: Connection, ids: Iterable[str]) -> Iterator[Mapping[str, str]]:
    """By partition the ranges of ids, (after, until], which together are all there can be, and the ids in each."""
    at_home: list[list[str]] = [[] for _ in range(connection.layout.partitions)]
    for id_ in sorted(ids):
        at_home[connection.layout.home_of_name(id_)].append(id_)
    for home, own in enumerate(at_home):
        begins = range(0, max(len(own), 1), IDS_OF_A_PIECE)
        for begin, end in pairwise([*begins, len(own)]):
            after, until = own[begin - 1] if begin else "", own[end - 1] if end < len(own) else ""
            named = " ".join(own[begin:end])
            yield {"partition": str(home), "after": after, "until": until, "ids": named}


def _retained(event: Event | None) -> Iterator[ScheduleChange]:
    if event is None:
        yield ScheduleChange(id="", outcome=UNKNOWN)
        return
    for outcome, name in (("deleted", "removed"), ("older", "older")):
        yield from (ScheduleChange(id=id_, outcome=outcome) for id_ in event.detail.get(name, "").split())


def _answers(connection: Connection, sent: Iterable[Sent]) -> Iterator[ScheduleChange]:
    under_way: deque[Sent] = deque()
    for one in sent:
        under_way.append(one)
        if len(under_way) >= UNDER_WAY:
            yield _outcome(connection, under_way.popleft())
    while under_way:
        yield _outcome(connection, under_way.popleft())


def _outcome(connection: Connection, sent: Sent) -> ScheduleChange:
    try:
        return changed(connection, sent)
    except (InvalidInput, Refused) as error:
        return ScheduleChange(id=sent.command.schedule_id or "", outcome=REFUSED, reason=str(error))


def check_queues(connection: Connection, specs: Iterable[ScheduleSpec]) -> None:
    """InvalidInput naming the first schedule whose queue there is not: before anything is asked for."""
    for spec in specs:
        try:
            connection.require_queue(spec.queue)
        except InvalidInput as error:
            raise InvalidInput(f"{spec.id}: {error.field}", error.problem) from None
