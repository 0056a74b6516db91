"""Crontab: which schedules are shown, and when the next ones are."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser.conftest import Open
from browser.made import stamp
from browser.serve import Served
from browser.test_flows import narrow, press
from playwright.sync_api import expect

pytestmark = pytest.mark.timeout(180)


def test_schedules_are_shown_by_state_and_the_address_says_so(
    served: Served, open_page: Open, shots: Path
) -> None:
    served.store.schedules["daily-report"]["failures_in_row"] = 2
    page = open_page("crontab")
    rows = page.locator("table.t tbody tr")
    expect(rows).to_have_count(30)
    pills = page.get_by_role("navigation", name="By state")
    expect(pills.get_by_role("link", name="any state")).to_have_attribute("aria-current", "true")
    for state, names in (("paused", [".."]), ("overdue", ["poll.inbox"])):
        pills.get_by_role("link", name=state).click()
        page.wait_for_url(f"**/console/crontab?state={state}")
        expect(rows).to_have_count(len(names))
        assert [each.split()[0] for each in rows.get_by_role("rowheader").all_inner_texts()] == names
    pills.get_by_role("link", name="failing").click()
    expect(rows.filter(has_text="daily-report")).to_have_count(1)
    page.get_by_role("searchbox").fill("daily-r")
    press(page, "Search")
    page.wait_for_url("**/console/crontab?q=daily-r&state=failing")
    expect(rows).to_have_count(1)
    expect(pills.get_by_role("link", name="failing")).to_have_attribute("aria-current", "true")
    pills.get_by_role("link", name="ended").click()
    page.wait_for_url("**/console/crontab?q=daily-r&state=ended")
    expect(page.get_by_text("None is ended and has 'daily-r' in its id or handler.")).to_be_visible()
    assert not Axe().run(page, "main").response["violations"]
    narrow(page)
    page.screenshot(path=shots / "crontab-ended-narrow-light.png")


def test_schedules_are_shown_by_where_they_come_from(served: Served, open_page: Open) -> None:
    number = sum(view["source"] == "file:jobs.toml" for view in served.store.schedules.values())
    page = open_page("crontab?source=file%3Ajobs.toml&state=active")
    rows = page.locator("table.t tbody tr")
    expect(rows.first).to_be_visible()
    page.get_by_role("link", name="any state").click()
    page.wait_for_url("**/console/crontab?source=file%3Ajobs.toml")
    expect(rows).to_have_count(number)
    expect(page.get_by_role("link", name="from file:jobs.toml")).to_have_attribute("aria-current", "true")
    page.get_by_role("searchbox").fill("nothing-like-it")
    press(page, "Search")
    expect(page.get_by_text("None comes from file:jobs.toml and has 'nothing-like-it'")).to_be_visible()
    page.get_by_role("link", name="any source").click()
    page.wait_for_url("**/console/crontab?q=nothing-like-it")


def test_a_day_to_come_has_its_name(served: Served, open_page: Open) -> None:
    view = served.store.schedules["daily-report"]
    days = [datetime(2027, 12, 1, 9, tzinfo=UTC) + timedelta(days=n) for n in range(3)]
    view["upcoming"] = [stamp(day.timestamp() * 1000) for day in days]
    page = open_page("crontab?q=daily-report", timezone_id="UTC")
    expect(page.get_by_text("then Thu 2 Dec 2027 09:00, Fri 3 Dec 2027 09:00")).to_be_visible()
    local = page.get_by_role("row", name="daily-report").get_by_text(
        re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d 02:30")
    )
    expect(local).to_be_visible()


def test_a_paused_row_says_what_would_be_next(served: Served, open_page: Open) -> None:
    served.store.schedules["daily-report"].update(state="paused", next_at=None, next_local=None)
    row = open_page("crontab?q=daily-report").get_by_role("row", name="daily-report")
    expect(row).to_contain_text("if resumed: ")
    expect(row.locator("td", has_text="if resumed").locator("time")).to_have_count(2)


def test_the_zone_stands_once(served: Served, open_page: Open) -> None:
    rows = open_page("crontab").locator("table.t tbody tr")
    expect(rows.filter(has_text="daily-report")).to_contain_text("every day at 02:30")
    assert rows.filter(has_text="daily-report").inner_text().count("Berlin") == 1
    for row in rows.filter(has_text="UTC").all():
        assert row.inner_text().count("UTC") == 1
