"""What differs between a form and a schedule that somebody else has changed meanwhile."""

from __future__ import annotations

from pipeline.server.console.schedule_conflict import DEFAULT, differences
from pipeline.server.console.schedule_fields import written

SPEC = {"id": "x", "handler": "h", "cron": "0 2 * * *", "note": "old", "misfire": "all(20)"}


def of(yours: dict[str, str], stored: dict[str, object]) -> list[tuple[str, str, str, str]]:
    before = written(SPEC)
    found = differences(before, {**before, **yours}, written({**SPEC, **stored}))
    return [(each.label, each.shown_yours, each.shown_stored, each.told) for each in found]


def test_nothing_differs() -> None:
    assert of({}, {}) == []
    assert of({"note": "new"}, {"note": "new"}) == []  # both had the same idea


def test_who_changed_what_is_told_in_the_order_of_the_form() -> None:
    found = of({"note": "mine", "queue": "mail"}, {"note": "theirs", "cron": "0 3 * * *"})
    assert found == [
        ("Cron expression", "0 2 * * *", "0 3 * * *", "changed by somebody else"),
        ("Queue", "mail", DEFAULT, "changed by you"),
        ("Note", "mine", "theirs", "changed by you and by somebody else"),
    ]


def test_a_choice_is_told_in_its_words() -> None:
    assert of({"overlap": "allow"}, {}) == [
        ("While one is running", "run both", "skip the next one", "changed by you")
    ]


def test_a_policy_and_its_number_are_one() -> None:
    before = written(SPEC)
    yours = {**before, "misfire": "latest"}
    (found,) = differences(before, yours, written({**SPEC, "misfire": "all(30)"}))
    assert (found.shown_yours, found.shown_stored) == ("fire the latest", "fire the newest, up to 30")
    assert found.stored == {"misfire": "all", "misfire_number": "30"}
    assert found.yours == {"misfire": "latest", "misfire_number": "20"}


def test_a_number_that_does_not_count_differs_from_nothing() -> None:
    assert of({"misfire": "latest", "misfire_number": "9"}, {"misfire": "latest"}) == []


def test_what_the_form_does_not_have_is_left_out() -> None:
    before = {name: text for name, text in written(SPEC).items() if name != "id"}
    assert differences(before, before, {**before, "id": "y"}) == []
