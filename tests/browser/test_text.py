"""Text of others stays text; numbers keep every digit; instants follow the switch; keys and copying work."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from browser.conftest import NARROW, Open
from browser.made import BIG, HOSTILE, stamp
from browser.serve import Served
from browser.test_flows import dialog, job_in, job_page, press
from playwright.sync_api import expect

pytestmark = pytest.mark.timeout(180)


def test_a_hostile_backup(served: Served, open_page: Open) -> None:
    served.store.held = {"backup": HOSTILE[0], "state": "held", "since": "2026-11-30T00:00:00.000Z", "era": 2}
    page = open_page("")
    expect(page.get_by_text(f"Restored from backup {HOSTILE[0]}")).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_hostile_text_is_shown_as_it_is(served: Served, open_page: Open) -> None:
    for place, text in enumerate(HOSTILE[:4]):
        view = list(served.store.jobs.values())[place + 1]
        assert view["key"] == text
        page = open_page(job_page(view))
        expect(page.locator("dd .mono", has_text=text.strip())).to_have_count(1)
        assert page.evaluate("window.hacked") is None


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_searches(text: str, served: Served, open_page: Open) -> None:
    page = open_page(f"jobs?{urlencode({'q': text})}", live=False)
    expect(page.get_by_role("combobox")).to_be_visible()
    page.goto(f"{served.url}/console/crontab?{urlencode({'q': text})}")
    expect(page.get_by_text("No schedules match")).to_be_visible()
    page.goto(f"{served.url}/console/dead?{urlencode({'handler': text})}")
    expect(page.get_by_text("No dead letters")).to_be_visible()
    page.goto(f"{served.url}/console/job?{urlencode({'id': text})}")
    expect(page.get_by_text("No such job")).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_what_turns_the_direction_of_writing_is_shown(served: Served, open_page: Open) -> None:
    page = open_page(job_page(list(served.store.jobs.values())[5]))
    expect(page.get_by_text("\\u202eevil\\u0000\\u0007 name").first).to_be_visible()


def test_a_schedule_called_two_dots(open_page: Open) -> None:
    page = open_page("crontab")
    page.get_by_role("link", name="..", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("..")
    expect(page.get_by_text("every 5 minutes New York")).to_be_visible()


def test_ids_are_cut_in_the_middle(served: Served, open_page: Open) -> None:
    """Those of one schedule differ at their end only."""
    ids = [each for each in served.store.jobs if each.startswith("s:nightly-")]
    page = open_page("jobs?q=schedule:" + ids[0].split(":")[1])
    link = page.get_by_role("link", name=ids[0], exact=True)
    expect(link).to_have_attribute("title", ids[0])
    begin, end = link.locator("span").all()
    expect(end).to_have_text(ids[0][-10:])
    assert begin.evaluate("it => it.scrollWidth > it.clientWidth")
    assert (
        link.evaluate("it => it.lastChild.getBoundingClientRect().right - it.getBoundingClientRect().right")
        < 1
    )
    page.set_viewport_size(NARROW)
    end.scroll_into_view_if_needed()
    expect(end).to_be_in_viewport(ratio=1)


def test_big_integers_keep_every_digit(served: Served, open_page: Open) -> None:
    view = job_in(served, "succeeded")
    page = open_page(job_page(view))
    expect(page.locator(".json .n", has_text=str(BIG))).to_have_count(2)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="copy the payload").click()
    expect(page.get_by_role("status").filter(has_text="Copied")).to_have_count(1)
    assert page.evaluate("navigator.clipboard.readText()") == view["payload"]


def test_a_payload_opens_and_closes(served: Served, open_page: Open) -> None:
    page = open_page(job_page(job_in(served, "pending")))
    inner = page.locator(".json details", has_text='"b"').last
    page.locator(".json summary", has_text='"a"').click()
    expect(inner).to_be_visible()


@pytest.mark.parametrize(
    "payload",
    [
        "[" * 3_000 + "]" * 3_000,
        '"' + "x" * 300_000 + '"',
        "[" + "1," * 20_000 + "1]",
        "{not json",
        '{":onclick": "window.hacked=1", "__proto__": {"x": 1}}',
    ],
)
def test_payloads_that_are_too_much(payload: str, served: Served, open_page: Open) -> None:
    view = job_in(served, "pending")
    view["payload"] = payload
    page = open_page(job_page(view))
    expect(page.get_by_role("heading", name="Payload")).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_instants_follow_the_switch(served: Served, open_page: Open) -> None:
    view = job_in(served, "pending")
    view["due_at"] = "2027-01-31T23:30:00.250Z"
    page = open_page(job_page(view), timezone_id="Asia/Kolkata")
    shown = page.locator(".facts due-at").first
    expect(shown).to_contain_text("2027-02-01 05:00:00.250 +05:30")
    press(page, "UTC")
    expect(shown).to_contain_text("2027-01-31 23:30:00.250 UTC")
    page.reload()
    expect(page.locator(".facts due-at").first).to_contain_text("2027-01-31 23:30:00.250 UTC")
    expect(page.get_by_role("button", name="UTC")).to_have_attribute("aria-pressed", "true")


def test_the_theme_follows_the_system_and_the_switch(open_page: Open) -> None:
    page = open_page("queues", color_scheme="dark")
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "dark")
    press(page, "Light")
    expect(root).to_have_attribute("data-theme", "light")
    page.reload()
    expect(root).to_have_attribute("data-theme", "light")
    press(page, "Auto")
    page.emulate_media(color_scheme="light")
    page.emulate_media(color_scheme="dark")
    expect(root).to_have_attribute("data-theme", "dark")


def test_keys(open_page: Open) -> None:
    page = open_page("jobs")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("/")
    search = page.get_by_role("combobox")
    expect(search).to_be_focused()
    page.keyboard.type("a/b")
    expect(search).to_have_value("a/b")


def test_the_map_is_one_stop_and_walked_with_arrows(served: Served, open_page: Open) -> None:
    page = open_page(f"buckets?at={stamp(served.store.now)}")  # which stands still at the turn of an hour
    cells = page.locator(".heat a[tabindex='0']")
    expect(cells).to_have_count(1)
    cells.focus()
    before = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("ArrowDown")
    page.wait_for_function(
        "(before) => document.activeElement.getAttribute('aria-label') !== before", arg=before
    )
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/jobs?q=due*")
    expect(page.locator("table.t tbody tr").first).to_be_visible()


def test_a_question_keeps_the_focus(open_page: Open) -> None:
    page = open_page("crontab")
    press(page, "Pause daily-report")
    expect(dialog(page).get_by_label("Reason")).to_be_focused()
    for _ in range(8):
        page.keyboard.press("Tab")
    assert page.evaluate(
        "document.querySelector('dialog').contains(document.activeElement) || document.activeElement === document.body"
    )


def test_typing_is_not_disturbed_by_what_comes_in(served: Served, open_page: Open) -> None:
    page = open_page("jobs?q=status%3Adead")
    search: Any = page.get_by_role("combobox")
    search.fill("half a wo")
    served.store.jobs.clear()
    press(page, "Refresh")
    expect(page.get_by_text("No jobs match")).to_be_visible()
    expect(search).to_have_value("half a wo")
