"""Whenever a backup is cut, and however long that takes: nothing is missing, and nothing is there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from unit.backup.test_files import source
from unit.backup.town import LAYOUT, NAMES, City, Glances, Town, fold, memory_scratch, open_runs

from pipeline import codec
from pipeline.backup import files
from pipeline.backup.cut import Cut, Reach, Span, take_cut
from pipeline.backup.records import Plain
from pipeline.backup.runs import consistent
from pipeline.backup.take import take_backup
from pipeline.core import ids
from pipeline.core.keys import JobsKind, parse_jobs_key
from pipeline.core.schedule import Schedule

SEEDS = 400


def occurrences(town: Town, cut: Cut) -> Counter[str]:
    """How often each occurrence is in a backup that is cut so."""
    jobs = fold(town, cut.jobs)
    runs = [
        record
        for partition, reach in enumerate(cut.work["default"])
        for record in open_runs(town, partition, reach, jobs)
    ]
    live = [
        record
        for partition, span in enumerate(cut.jobs)
        for record in jobs.live(partition)
        if consistent(record, span.settled, jobs, LAYOUT)
    ]
    return counted(town, live, runs)


def counted(town: Town, jobs: Iterable[Plain], runs: Iterable[Plain]) -> Counter[str]:
    """How often each occurrence stands in these records as something that will run, by the idempotency key under which
    it will."""
    found = Counter(codec.RUN.decode(record["value"]).idempotency_key for record in runs)
    copies = set()
    for record in jobs:
        key, value = parse_jobs_key(record["key"]), record["value"]
        match key.kind:
            case JobsKind.RETRY:
                found[codec.RUN.decode(value).idempotency_key] += 1
            case JobsKind.JOB:
                copies.add(key.id)  # copies are one record at home, also with one that a command puts there
            case JobsKind.COMMAND:
                command = codec.COMMAND.decode(value)
                if command.key is None:
                    copies.add(ids.command_job_id(command.due_at or 0, command.command_id))
                else:
                    found[command.idempotency_key or ""] += 1
            case JobsKind.KEYED if (run := codec.KEY_STATE.decode(value).run) is not None:
                found[run.idempotency_key] += 1
            case JobsKind.SCHEDULE:
                found.update(to_come(town, codec.SCHEDULE.decode(value)))
    found.update(copies)
    return found


def to_come(town: Town, state: Schedule) -> list[str]:
    """The instants that have come since, which the schedule will come to again."""
    return [
        id_
        for id_ in town.fates
        if id_.startswith("s:") and ids.parse_occurrence(id_).nominal_at > state.last_nominal
    ]


def cut_while_it_goes_on(seed: int, *, forgetful: bool = False) -> tuple[Town, Cut, int, int]:
    random = Random(seed)
    town = City(random)
    town.go_on(random.randrange(60))
    began = town.asked
    cut = take_cut(Glances(town, lambda: random.randrange(4), forgetful=forgetful), NAMES, LAYOUT)
    taken = town.asked
    town.go_on(random.randrange(20))
    return town, cut, began, taken


def judged(town: Town, found: Counter[str], began: int, taken: int) -> list[str]:
    problems = []
    for id_, fate in town.fates.items():
        count = found[id_]
        if count > 1:
            problems.append(f"{id_} is there {count} times")
        if fate.made <= began and (fate.ended is None or fate.ended > taken) and not count:
            problems.append(f"{id_} is missing")
        if fate.ended is not None and fate.ended <= began and count:
            problems.append(f"{id_} had ended before")
    return problems


@pytest.mark.parametrize("forgetful", [False, True], ids=["offsets", "acks"])
@pytest.mark.parametrize("part", range(4))
def test_nothing_is_missing_and_nothing_is_there_twice(part: int, forgetful: bool) -> None:
    """Whether the group says what has ended or, where it has forgotten, the acks."""
    kept = 0
    for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4):
        town, cut, began, taken = cut_while_it_goes_on(seed, forgetful=forgetful)
        found = occurrences(town, cut)
        assert judged(town, found, began, taken) == [], f"seed {seed}"
        kept += len(found)
    assert kept > SEEDS


def test_that_is_what_is_written(tmp_path: Path) -> None:
    later = 0
    for seed in range(60):
        random = Random(seed)
        town = City(random)
        town.go_on(40)
        steps = Glances(town, lambda: random.randrange(4))  # noqa: B023 - used in this round
        began = town.asked
        place = tmp_path / str(seed)
        take_backup(replace(source(town), positions=steps), place, memory_scratch)
        manifest = files.check(place)
        _, jobs, runs = ([*files.read(place, note)] for note in manifest.files)
        assert judged(town, counted(town, jobs, runs), began, town.asked) == [], f"seed {seed}"
        later += town.asked - began
    assert later > 60


def backwards(town: Town, cut: Cut, random: Random) -> Cut:
    """A cut that lets additions count up to an earlier place than removals."""
    glances = Glances(town, lambda: random.randrange(4))
    ends = glances.ends(NAMES.work("default"), 2)
    jobs = glances.ends(NAMES.jobs, LAYOUT.partitions)
    return Cut(
        jobs=[Span(end, end) for end in jobs],
        work={
            "default": [
                Reach(place.committed, 0, 0, end)
                for place, end in zip(cut.work["default"], ends, strict=True)
            ]
        },
    )


def test_a_cut_in_another_order_loses_something() -> None:
    """The control: what judges can see it."""
    problems = []
    for seed in range(100):
        random = Random(seed)
        town = Town(random)
        town.go_on(random.randrange(60))
        began = town.asked
        cut = take_cut(Glances(town, lambda: 0), NAMES, LAYOUT)
        cut = backwards(town, cut, random)
        problems += judged(town, occurrences(town, cut), began, town.asked)
    assert any("is missing" in problem for problem in problems)
