"""Whenever a backup is cut, and however long that takes: nothing is missing, and nothing is there twice."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from unit.backup.town import LAYOUT, NAMES, Glances, Town, fold, open_runs

from pipeline import codec
from pipeline.backup.cut import Cut, Reach, Span, take_cut
from pipeline.core import ids
from pipeline.core.keys import parse_jobs_key
from pipeline.fold import CREATE

SEEDS = 400


def occurrences(town: Town, cut: Cut) -> Counter[str]:
    """How often each occurrence is in the backup, as something that will run."""
    jobs = fold(town, cut.jobs)
    runs = [
        codec.RUN.decode(record["value"])
        for partition, reach in enumerate(cut.work["default"])
        for record in open_runs(town, partition, reach, jobs)
    ]
    found = Counter(run.occurrence_id for run in runs)
    there = set()
    for partition in range(LAYOUT.partitions):
        for record in jobs.live(partition):
            key = parse_jobs_key(record["key"])
            if record["key"][:2] in (b"j/", b"r/"):
                there.add(key.id)  # two copies of one record are one record once they are at home
            elif record["key"][:2] == b"c/":
                command = codec.COMMAND.decode(record["value"])
                assert command.verb == CREATE
                there.add(ids.command_job_id(command.due_at or 0, command.command_id))
    found.update(there)
    return found


def cut_while_it_goes_on(seed: int) -> tuple[Town, Cut, int, int]:
    random = Random(seed)
    town = Town(random)
    town.go_on(random.randrange(60))
    began = town.asked
    cut = take_cut(Glances(town, lambda: random.randrange(4)), NAMES, LAYOUT)
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


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_missing_and_nothing_is_there_twice(part: int) -> None:
    kept = 0
    for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4):
        town, cut, began, taken = cut_while_it_goes_on(seed)
        found = occurrences(town, cut)
        assert judged(town, found, began, taken) == [], f"seed {seed}"
        kept += len(found)
    assert kept > SEEDS


def backwards(town: Town, cut: Cut, random: Random) -> Cut:
    """A cut that lets additions count up to an earlier place than removals."""
    glances = Glances(town, lambda: random.randrange(4))
    ends = glances.ends(NAMES.work("default"), 2)
    jobs = glances.ends(NAMES.jobs, LAYOUT.partitions)
    return Cut(
        jobs=[Span(end, end) for end in jobs],
        work={
            "default": [
                Reach(place.committed, 0, end) for place, end in zip(cut.work["default"], ends, strict=True)
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
