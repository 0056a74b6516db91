"""Why a job stands where it stands, as soon as it stands elsewhere; and how far away an instant is."""

from __future__ import annotations

import pytest
from browser.conftest import Open
from browser.made import HOUR, now_ms, stamp
from browser.serve import Served
from browser.test_flows import dialog, job_in, job_page, press
from playwright.sync_api import expect

pytestmark = pytest.mark.timeout(180)


def test_why_is_asked_again_once_the_job_is_put_off(served: Served, open_page: Open) -> None:
    view = job_in(served, "pending")
    page = open_page(job_page(view), timezone_id="UTC")
    panel = page.locator("section", has_text="Why it is in this state")
    expect(panel.locator("time")).to_have_attribute("datetime", view["due_at"])
    later = stamp(now_ms() + 100 * HOUR)

    def put_off() -> None:
        served.store.jobs[view["id"]]["due_at"] = later

    press(page, "Reschedule")
    dialog(page).get_by_label("When").fill("100h")
    put_off()
    press(dialog(page), "Reschedule")
    expect(panel.locator("time")).to_have_attribute("datetime", later)


def test_its_instants_are_shown_as_the_switch_says(served: Served, open_page: Open) -> None:
    view = job_in(served, "queued")
    view["due_at"] = "2026-01-02T10:00:00.000Z"
    page = open_page(job_page(view), timezone_id="Asia/Kolkata")
    panel = page.locator("section", has_text="Why it is in this state")
    expect(panel).to_contain_text("It was due 2026-01-02 15:30:00")
    press(page, "UTC")
    expect(panel).to_contain_text("It was due 2026-01-02 10:00:00")


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (119 * 60_000, "in 2 h"),
        (100 * 60_000, "in 2 h"),
        (80 * 60_000, "in 1 h"),
        (59_800, "in 1 min"),
        (-(47 * HOUR + 40 * 60_000), "2 d ago"),
        (-46 * HOUR, "46 h ago"),
        (-40_000, "40 s ago"),
    ],
)
def test_times_from_now_are_rounded(ms: int, shown: str, open_page: Open) -> None:
    page = open_page("queues")
    told = page.evaluate(
        """(ms) => {
          const now = Date.now();
          Date.now = () => now;
          const element = document.createElement("due-at");
          element.setAttribute("how", "rel");
          element.setAttribute("at", new Date(now + ms).toISOString());
          document.querySelector("main").append(element);
          return element.textContent;
        }""",
        ms,
    )
    assert told == shown
