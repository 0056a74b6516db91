"""Two people who edit one schedule: the second one sees what the first one did, and chooses."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser.conftest import Open
from browser.made import HOSTILE, schedule
from browser.serve import Served
from browser.test_flows import press
from playwright.sync_api import expect

pytestmark = pytest.mark.timeout(180)


def test_what_somebody_else_changed_meanwhile_is_shown_and_chosen(served: Served, open_page: Open) -> None:
    store = served.store
    page = open_page("schedule/edit?id=daily-report", live=False)
    page.get_by_label("Cron expression").fill("0 3 * * *")
    page.get_by_label("Maximum attempts").fill("7")
    page.get_by_label("If some were missed").select_option("none")
    spec = {
        **store.schedules["daily-report"]["spec"],
        "cron": "0 4 * * *",
        "misfire": "all(20)",
        "note": "by ben",
    }
    store.schedules["daily-report"] = schedule(store, "daily-report", spec, 1)
    press(page, "Save changes")
    expect(page.get_by_text("It was not saved.")).to_be_visible()
    assert store.done == []
    for label, yours, stored, told in (
        ("Cron expression", "0 3 * * *", "0 4 * * *", "changed by you and by somebody else"),
        ("Maximum attempts", "7", "(default)", "changed by you"),
        (
            "If some were missed",
            "fire none",
            "fire the newest, up to 20",
            "changed by you and by somebody else",
        ),
        ("Note", HOSTILE[0], "by ben", "changed by somebody else"),
    ):
        shown = page.get_by_role("group", name=label, exact=True)
        expect(shown).to_contain_text(told)
        expect(shown.get_by_role("region", name="Your value")).to_have_text(yours)
        expect(shown.get_by_role("region", name="Stored now")).to_have_text(stored)
    expect(page.get_by_label("Note", exact=True).and_(page.get_by_role("textbox"))).to_have_value("by ben")
    assert not Axe().run(page, ".differs").response["violations"]
    cron = page.get_by_role("group", name="Cron expression")
    expect(cron.get_by_role("button", name="Keep yours")).to_have_attribute("aria-pressed", "true")
    press(cron, "Use stored")
    expect(page.get_by_role("textbox", name="Cron expression")).to_have_value("0 4 * * *")
    press(cron, "Keep yours")
    expect(page.get_by_role("textbox", name="Cron expression")).to_have_value("0 3 * * *")
    press(page.get_by_role("group", name="If some were missed"), "Use stored")
    expect(page.get_by_role("combobox", name="If some were missed")).to_have_value("all")
    expect(page.get_by_role("textbox", name="Maximum missed to fire")).to_have_value("20")
    press(page, "Save changes")
    page.wait_for_url("**/console/schedule?id=daily-report")
    ((name, given),) = store.done
    assert (name, given["etag"]) == ("update_schedule", "e1")
    assert given["options"] == {"cron": "0 3 * * *", "max_attempts": 7}


def test_a_schedule_that_was_only_paused_meanwhile_is_saved_again(served: Served, open_page: Open) -> None:
    page = open_page("schedule/edit?id=daily-report", live=False)
    served.store.schedules["daily-report"].update(state="paused", etag="e0-paused")
    press(page, "Save changes")
    expect(page.get_by_text("it is paused now.")).to_be_visible()
    expect(page.get_by_text("Its definition is what you have here")).to_be_visible()
    press(page, "Save changes")
    page.wait_for_url("**/console/schedule?id=daily-report")


def test_a_schedule_that_is_gone_meanwhile(served: Served, open_page: Open) -> None:
    page = open_page("schedule/edit?id=daily-report", live=False)
    page.get_by_label("Cron expression").fill("0 3 * * *")
    del served.store.schedules["daily-report"]
    press(page, "Save changes")
    expect(page.get_by_text("no schedule 'daily-report'")).to_be_visible()
    expect(page.get_by_label("Cron expression")).to_have_value("0 3 * * *")
