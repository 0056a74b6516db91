"""What a sync would do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.crontab import Plan, plan
from pipeline.crontab.plan import changes

FILE = "file:jobs"


def wanted(id: str, **fields: Any) -> ScheduleSpec:
    return ScheduleSpec(**{"id": id, "handler": "h", "cron": "0 1 * * *", "source": FILE, **fields})


def there(spec: ScheduleSpec, **fields: Any) -> Schedule:
    zero = {"incarnation": 1, "revision": 7, "created_at": 0, "changed_at": 0, "last_nominal": 0}
    return Schedule(**{"spec": spec, **zero, **fields})


def test_a_plan_creates_updates_deletes_and_leaves_alone() -> None:
    current = [
        there(wanted("same")),
        there(wanted("changed")),
        there(wanted("gone.b")),
        there(wanted("gone.a", cron="0 2 * * *")),
        there(wanted("theirs", source="cli")),
        there(wanted("other", source="file:other")),
    ]
    changed = wanted("changed", cron="0 4 * * *", payload=b'{"a":1}', misfire="none")
    made = plan(current, [wanted("new"), changed, wanted("theirs"), wanted("same")], FILE)
    assert [spec.id for spec in made.create] == ["new"]
    assert [(update.spec, update.revision) for update in made.update] == [(changed, 7)]
    assert [(item.field, item.old, item.new) for item in made.update[0].changed] == [
        ("payload", {}, {"a": 1}),
        ("cron", "0 1 * * *", "0 4 * * *"),
        ("misfire", "latest", "none"),
    ]
    assert (made.delete, made.unchanged) == (("gone.a", "gone.b"), ("same",))
    assert [(item.spec.id, item.source) for item in made.foreign] == [("theirs", "cli")]
    assert made.lines() == [
        "+ new  0 1 * * *  UTC  h",
        "~ changed",
        '    payload: {} -> {"a": 1}',
        '    cron: "0 1 * * *" -> "0 4 * * *"',
        '    misfire: "latest" -> "none"',
        "- gone.a",
        "- gone.b",
        "! theirs  left alone: it came from cli",
        "1 to create, 1 to update, 2 to delete, 1 unchanged, 1 of other sources",
    ]
    assert not made.empty


def test_the_version_of_an_application_is_no_change() -> None:
    old = wanted("a", source="app:shop", version="1")
    made = plan([there(old)], [replace(old, version="2")], "app:shop")
    assert (made.unchanged, made.empty) == (("a",), True)


def test_what_an_application_gave_up_is_there_no_more() -> None:
    current = [there(wanted("a", source="app:shop"), ended="removed"), there(wanted("b"), ended="removed")]
    made = plan(current, [wanted("a")], FILE)
    assert ([spec.id for spec in made.create], made.delete, made.foreign) == (["a"], (), ())


def test_a_series_that_ended_is_there_still() -> None:
    assert plan([there(wanted("a"), ended="end")], [wanted("a")], FILE).unchanged == ("a",)


def test_a_value_of_a_line_is_one_line_of_printable_text() -> None:
    made = plan([there(wanted("a", note="x"))], [wanted("a", note="\x1b[31m\n" + "y" * 500)], FILE)
    line = made.lines()[1]
    assert line.startswith('    note: "x" -> "\\u001b[31m\\nyyy')
    assert line.isprintable()
    assert len(line) < 250


def test_a_field_that_was_not_given_is_told() -> None:
    (changed,) = changes(wanted("a"), wanted("a", end_at=4_000_000_000_000))
    assert (changed.field, changed.old, changed.new) == ("end", None, "2096-10-02T07:06:40.000Z")


def applied(current: list[Schedule], made: Plan) -> dict[str, ScheduleSpec]:
    """What an owner does with each verb: `schedule.put` never takes a schedule of another source."""
    specs = {state.spec.id: state.spec for state in current if state.ended != "removed"}
    for spec in (*made.create, *(update.spec for update in made.update)):
        assert specs.get(spec.id, spec).source == FILE
        specs[spec.id] = spec
    for id in made.delete:
        assert specs.pop(id).source == FILE
    return specs


SPECS = st.builds(
    wanted,
    st.sampled_from("abcdef"),
    cron=st.sampled_from(["0 1 * * *", "0 2 * * *"]),
    misfire=st.sampled_from(["latest", "none"]),
    labels=st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2),
)
CURRENT = st.builds(
    lambda spec, source, ended: there(replace(spec, source=source), ended=ended),
    SPECS,
    st.sampled_from([FILE, "cli", "app:a"]),
    st.sampled_from(["", "end", "removed"]),
)


def by_id(item: Any) -> str:
    return getattr(item, "spec", item).id


@given(st.lists(CURRENT, unique_by=by_id), st.lists(SPECS, unique_by=by_id))
def test_an_applied_plan_gives_what_was_wanted_and_nothing_of_others_changed(
    current: list[Schedule], specs: list[ScheduleSpec]
) -> None:
    made = plan(current, specs, FILE)
    after = applied(current, made)
    others = {
        state.spec.id: state.spec
        for state in current
        if state.ended != "removed" and state.spec.source != FILE
    }
    assert after == {spec.id: spec for spec in specs} | others
    assert {item.spec.id for item in made.foreign} == {spec.id for spec in specs} & {*others}
    again = plan([there(spec) for spec in after.values()], specs, FILE)
    assert again.empty
    counts = [int(number) for number in re.findall(r"\d+", made.lines()[-1])]
    assert sum(counts) - counts[2] == len(specs)
