"""Instants are picked in a zone that stands beside, by keyboard too, or typed; either way the text says it all."""

from __future__ import annotations

from urllib.parse import parse_qs, urlparse

import pytest
from browser.conftest import Open
from browser.serve import Served
from browser.test_flows import dialog, job_in, job_page, press, said
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.timeout(180)


def field(place: Page | Locator, name: str) -> Locator:
    return place.locator(f'.field:has(> label:text-is("{name}"))')


def picked(place: Page | Locator, name: str, wall: str, zone: str = "") -> Locator:
    """The text of a field once this was picked there, by keyboard, and in this zone, which the server tells it."""
    own = field(place, name)
    own.get_by_role("button", name="Pick").press("Enter")
    picker = own.get_by_label("Date and time")
    expect(picker).to_be_focused()
    expect(own.locator(".pick .hint")).to_contain_text(zone)
    picker.fill(wall)
    return own.locator("input[type=text]")


@pytest.mark.parametrize(
    ("zone", "wall", "instant", "told"),
    [
        ("Europe/Berlin", "2027-07-01T09:00", "2027-07-01T09:00:00+02:00", "Europe/Berlin, UTC+02:00"),
        ("Europe/Berlin", "2027-03-28T02:30", "2027-03-28T03:30:00+02:00", "Europe/Berlin, UTC+02:00"),
        ("Europe/Berlin", "2027-10-31T02:30", "2027-10-31T02:30:00+02:00", "Europe/Berlin, UTC+02:00"),
        ("America/St_Johns", "2027-01-01T00:00", "2027-01-01T00:00:00-03:30", "America/St_Johns, UTC-03:30"),
        ("", "2027-01-01T00:00", "2027-01-01T00:00:00Z", "UTC"),
    ],
)
def test_a_schedule_begins_in_its_own_zone(
    zone: str, wall: str, instant: str, told: str, served: Served, open_page: Open
) -> None:
    page = open_page("schedule/edit", live=False, timezone_id="Asia/Kolkata")
    page.get_by_label("Every").fill("1h")
    page.get_by_label("Time zone").fill(zone)
    expect(picked(page, "Start", wall, told.partition(",")[0])).to_have_value(instant)
    expect(field(page, "Start").locator(".pick .hint")).to_have_text(told)
    page.get_by_label("Id", exact=True).fill("x")
    page.get_by_label("Handler").fill("h")
    press(page, "Create")
    page.wait_for_url("**/console/schedule?id=x")
    ((_, given),) = served.store.done
    assert given["options"]["start"] == instant


def test_a_job_is_put_off_in_the_zone_that_the_page_shows(served: Served, open_page: Open) -> None:
    view = job_in(served, "pending")
    page = open_page(job_page(view), timezone_id="Asia/Kolkata")
    press(page, "Reschedule")
    expect(picked(dialog(page), "When", "2027-07-01T09:00")).to_have_value("2027-07-01T09:00:00+05:30")
    press(dialog(page), "Go back")
    press(page, "UTC")
    press(page, "Reschedule")
    expect(picked(dialog(page), "When", "2027-07-01T09:00")).to_have_value("2027-07-01T09:00:00Z")
    expect(dialog(page).locator(".pick .hint")).to_have_text("UTC")
    press(dialog(page), "Reschedule")
    said(page, "Rescheduled")
    assert served.store.done == [
        ("reschedule", {"job_id": view["id"], "at": "2027-07-01T09:00:00Z", "in_": None})
    ]


@pytest.mark.parametrize(
    ("typed", "instant"),
    [
        ("2026-11-01", "2026-11-01T00:00:00+01:00"),
        ("2026-07-01 09:30", "2026-07-01T09:30:00+02:00"),
        ("2026-07-01T09:30:15", "2026-07-01T09:30:15+02:00"),
        ("2026-11-01T00:00:00Z", "2026-11-01T00:00:00Z"),
        ("2026-11-01T00:00:00.250+05:00", "2026-11-01T00:00:00.250+05:00"),
    ],
)
def test_what_is_typed_without_an_offset_is_in_the_zone_of_the_schedule(
    typed: str, instant: str, open_page: Open
) -> None:
    page = open_page("schedule?id=daily-report", timezone_id="Asia/Kolkata")
    press(page, "Backfill")
    text = field(dialog(page), "From (inclusive)").locator("input[type=text]")
    text.fill(typed)
    page.keyboard.press("Tab")
    expect(text).to_have_value(instant)
    field(dialog(page), "From (inclusive)").get_by_role("button", name="Pick").press("Enter")
    wall = field(dialog(page), "From (inclusive)").get_by_label("Date and time").input_value()
    assert wall  # it begins where the text is


def test_jobs_between_two_instants(served: Served, open_page: Open) -> None:
    page = open_page("jobs?q=handler%3Aemail.send+due%3C%3Dnow", timezone_id="Europe/Berlin")
    page.get_by_text("Due between").click()
    page.get_by_label("Due to (exclusive)").fill("soon")
    press(page, "Apply")
    expect(field(page, "Due to (exclusive)").locator(".error")).to_contain_text("'soon' is not a date")
    page.get_by_label("Due to (exclusive)").fill("+1d")
    picked(page, "Due from (inclusive)", "2026-11-01T08:00")
    press(page, "Apply")
    page.wait_for_url("**%2B1d*")
    (search,) = parse_qs(urlparse(page.url).query)["q"]
    assert search == "handler:email.send due>=2026-11-01T08:00:00+01:00 due<+1d"
    expect(page.get_by_role("combobox")).to_have_value(search)
    expect(page.locator("table.t tbody tr").first).to_be_visible()
