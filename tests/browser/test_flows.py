"""What operators do, pressed in a browser: each change reaches the actions as it was meant, and the page shows it."""

from __future__ import annotations

import re
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser.conftest import NARROW, Open
from browser.made import HOUR, letters, ms_of, now_ms, stamp
from browser.serve import Served
from playwright.sync_api import Locator, Page, expect

from pipeline.follower import WantedLetters
from pipeline.follower.letter_groups import counted
from pipeline.server.access import Role

pytestmark = pytest.mark.timeout(180)


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def press(place: Page | Locator, name: str) -> None:
    place.get_by_role("button", name=name, exact=True).click()


def said(page: Page, text: str) -> None:
    """The note at the foot of the page."""
    expect(page.locator(".q-notification").filter(has_text=text).first).to_be_visible()


def narrow(page: Page) -> None:
    """And it knows."""
    page.set_viewport_size(NARROW)
    page.wait_for_function("width => innerWidth === width", arg=NARROW["width"])


def job_in(served: Served, status: str) -> dict[str, Any]:
    return next(view for view in served.store.jobs.values() if view["status"] == status)


def job_page(view: dict[str, Any]) -> str:
    return f"job?{urlencode({'id': view['id']})}"


# -- schedules -------------------------------------------------------------------------------------------------------


def test_create_a_schedule_with_a_preview(served: Served, open_page: Open) -> None:
    page = open_page("schedule/edit", live=False)
    page.get_by_label("Id", exact=True).fill("tax-report")
    page.get_by_label("Cron expression").fill("30 2 * * *")
    page.get_by_label("Zone").fill("Europe/Berlin")
    expect(page.locator(".preview ol").first.locator("li")).to_have_count(10)
    nights = page.locator(".preview h3:not(:first-child) + ol")  # the next ten may be such nights too
    expect(nights.get_by_text("the clock goes forward by 1 hour right before it")).to_be_visible()
    expect(nights.get_by_text("this time comes twice: the first pass")).to_be_visible()
    page.get_by_label("Handler").fill("report.tax")
    page.get_by_label("Payload").fill('{"year": 123456789012345678901234567890}')
    press(page, "Create")
    page.wait_for_url("**/console/schedule?id=tax-report")
    expect(page.get_by_role("heading", level=1)).to_have_text("tax-report")
    ((name, given),) = served.store.done
    assert name == "create_schedule"
    assert given["options"]["payload"] == {"year": 123456789012345678901234567890}
    assert given["options"] | {"payload": None} == {
        "cron": "30 2 * * *",
        "tz": "Europe/Berlin",
        "handler": "report.tax",
        "dst_gap": "run_after",
        "dst_overlap": "first",
        "misfire": "latest",
        "overlap": "skip",
        "payload": None,
    }


def test_a_form_names_the_field_that_is_wrong(served: Served, open_page: Open) -> None:
    page = open_page("schedule/edit", live=False)
    page.get_by_label("Cron expression").fill("61 * * * *")
    error = page.locator(".field", has_text="Cron expression").locator(".error")
    expect(error).to_contain_text("61")
    expect(page.get_by_label("Cron expression")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Cron expression").fill("* * * * *")
    expect(error).to_have_count(0)
    page.get_by_label("Zone").fill("Mars/Base")
    expect(page.locator(".field", has_text="Zone").locator(".error")).to_contain_text("Mars/Base")
    page.get_by_label("Cron expression").fill("61 * * * *")
    page.get_by_label("Payload").fill("[1]")
    page.get_by_label("Maximum attempts").fill("many")
    expect(page.locator(".field .error")).to_have_count(4)
    expect(page.locator(".field", has_text="Payload").locator(".error")).to_contain_text("must be an object")
    page.get_by_label("Zone").fill("")
    expect(page.locator(".field .error")).to_have_count(3)
    press(page, "Create")
    expect(page.locator(".field .error")).to_have_count(5)
    expect(page.get_by_text("Check Id, Cron expression, Handler, Payload, Maximum attempts")).to_be_visible()
    assert served.store.done == []
    for label, text in (("Id", "x"), ("Cron expression", "@daily"), ("Handler", "h"), ("Payload", "{}")):
        page.get_by_label(label, exact=True).fill(text)
    expect(page.get_by_text("It was not saved.")).to_be_visible()
    page.get_by_label("Maximum attempts").fill("3")
    expect(page.get_by_text("It was not saved.")).to_have_count(0)  # with the last of what was wrong


HASTE = """() => {
  const area = document.querySelector("textarea");
  area.focus();
  area.value = "[1]";
  area.dispatchEvent(new Event("input"));
  area.blur();
  [...document.querySelectorAll("button")].find((button) => button.textContent === "Create").click();
}"""


def test_what_was_typed_last_counts_however_fast_a_button_follows(open_page: Open) -> None:
    page = open_page("schedule/edit", live=False)
    page.wait_for_function("window.did_handshake")
    page.evaluate(HASTE)
    expect(page.locator(".field", has_text="Payload").locator(".error")).to_contain_text("must be an object")


FOLDED = """(area) => {
  area.value = "tenant";
  area.dispatchEvent(new Event("input"));
  area.closest("details").open = false;
}"""


def test_edit_a_schedule_sends_what_was_changed(served: Served, open_page: Open) -> None:
    page = open_page("schedule/edit?id=daily-report", live=False)
    page.get_by_label("Cron expression").fill("0 3 * * *")
    expect(page.locator(".preview li").first).to_contain_text("03:00:00")
    narrow(page)
    parts = page.get_by_role("heading", level=2)
    expect(parts).to_have_text(["When", "Preview", "What"])
    tops: list[float] = parts.evaluate_all("all => all.map((each) => each.getBoundingClientRect().top)")
    assert tops == sorted(set(tops))
    more = page.locator("details")
    expect(more.get_by_label("Labels")).not_to_be_visible()
    more.locator("summary").press("Enter")
    assert not Axe().run(page, "details").response["violations"]
    more.get_by_label("Labels").evaluate(FOLDED)
    expect(more.locator(".error")).to_contain_text("'tenant' is not name=value")
    expect(more.locator(".error")).to_be_visible()
    more.get_by_label("Labels").fill("tenant=acme\nteam=tax")
    more.get_by_label("Exclude").fill("holidays=2030-12-24..2031-01-01")
    page.get_by_label("If some were missed").select_option("all")
    page.get_by_label("Maximum missed to fire").fill("20")
    press(page, "Save changes")
    page.wait_for_url("**/console/schedule?id=daily-report")
    ((name, given),) = served.store.done
    assert (name, given["etag"]) == ("update_schedule", "e0")
    assert given["options"] == {
        "cron": "0 3 * * *",
        "labels": {"tenant": "acme", "team": "tax"},
        "exclude": {"holidays": ["2030-12-24..2031-01-01"]},
        "misfire": "all(20)",
    }
    page.goto(f"{served.url}/console/schedule/edit?id=daily-report")
    expect(more.get_by_label("Labels")).to_have_value("tenant=acme\nteam=tax")
    expect(more.get_by_label("Labels")).to_be_visible()


def test_pause_with_a_note_and_resume(served: Served, open_page: Open) -> None:
    page = open_page("crontab")
    row = page.get_by_role("row", name="daily-report")
    press(row, "Pause daily-report")
    dialog(page).get_by_label("Reason").fill("tax season")
    press(dialog(page), "Pause")
    expect(row).to_contain_text("paused")
    expect(row).to_contain_text("tax season")
    press(row, "Resume daily-report")
    expect(row).to_contain_text("active")
    assert served.store.done == [
        ("pause_schedule", {"schedule_id": "daily-report", "note": "tax season"}),
        ("resume_schedule", {"schedule_id": "daily-report"}),
    ]


def test_leaving_a_question_does_nothing(served: Served, open_page: Open) -> None:
    page = open_page("crontab")
    press(page, "Run now daily-report")
    press(dialog(page), "Go back")
    expect(dialog(page)).to_have_count(0)
    press(page, "Run now daily-report")
    expect(dialog(page)).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    assert served.store.done == []


def test_run_a_schedule_now(served: Served, open_page: Open) -> None:
    page = open_page("schedule?id=daily-report")
    press(page, "Run now")
    expect(dialog(page).get_by_role("button", name="Run now")).to_be_focused()
    page.keyboard.press("Enter")
    said(page, "One extra occurrence has fired.")
    link = page.locator(".q-notification").get_by_role("link", name="Open the job")
    expect(link).to_have_attribute("href", "/console/job?id=s%3Adaily-report%3A1%3At%3Ax%3A1")
    assert served.store.done == [("trigger_schedule", {"schedule_id": "daily-report"})]


def test_backfill_is_counted_before_it_starts(served: Served, open_page: Open) -> None:
    page = open_page("schedule?id=daily-report")
    press(page, "Backfill")
    sheet = dialog(page)
    expect(sheet.get_by_role("button", name="Start")).to_be_disabled()
    sheet.get_by_label("From (inclusive)").fill("yesterday")
    press(sheet, "Count")
    expect(sheet.locator(".error")).to_contain_text("'yesterday' is no RFC 3339 instant")
    sheet.get_by_label("From (inclusive)").fill("2026-11-01T00:00:00Z")
    sheet.get_by_label("To (exclusive)").fill("2026-11-02T00:00:00Z")
    sheet.get_by_label("Limit per minute").fill("60")
    press(sheet, "Count")
    expect(sheet.get_by_text("24 occurrences in this range will run.")).to_be_visible()
    press(sheet, "Start")
    said(page, "Started")
    ((name, given),) = served.store.done
    assert (name, given["rate"], given["from_"]) == ("backfill_schedule", 60, "2026-11-01T00:00:00Z")


def test_a_changed_range_is_counted_anew(served: Served, open_page: Open) -> None:
    page = open_page("schedule?id=daily-report")
    press(page, "Backfill")
    sheet = dialog(page)
    sheet.get_by_label("From (inclusive)").fill("2026-11-01T00:00:00Z")
    sheet.get_by_label("To (exclusive)").fill("2026-11-02T00:00:00Z")
    press(sheet, "Count")
    expect(sheet.get_by_role("button", name="Start")).to_be_enabled()
    sheet.get_by_label("To (exclusive)").fill("2026-12-02T00:00:00Z")
    expect(sheet.get_by_role("button", name="Start")).to_be_disabled()


def test_delete_a_schedule(served: Served, open_page: Open) -> None:
    page = open_page("schedule?id=daily-report")
    press(page, "Delete")
    expect(
        dialog(page).get_by_role("button", name="Go back")
    ).to_be_focused()  # not what cannot be taken back
    press(dialog(page), "Delete")
    page.wait_for_url("**/console/crontab")
    said(page, "daily-report was deleted")
    assert served.store.done == [("delete_schedule", {"schedule_id": "daily-report"})]
    expect(page.get_by_role("link", name="poll.inbox")).to_be_visible()
    expect(page.get_by_role("link", name="daily-report")).to_have_count(0)


# -- jobs ------------------------------------------------------------------------------------------------------------


def test_cancel_a_job(served: Served, open_page: Open) -> None:
    view = job_in(served, "pending")
    page = open_page(job_page(view))
    press(page, "Cancel")
    press(dialog(page), "Cancel the job")
    said(page, "Cancelled")
    expect(page.locator(".facts .st")).to_have_text("cancelled")
    assert served.store.done == [("cancel", {"job_id": view["id"], "stop": False})]


def test_run_a_dead_job_again(served: Served, open_page: Open) -> None:
    view = job_in(served, "dead")
    page = open_page(job_page(view))
    press(page, "Requeue")
    press(dialog(page), "Requeue")
    said(page, "Requeued")
    assert served.store.done == [("requeue", {"job_id": view["id"]})]


def test_stop_a_running_job(served: Served, open_page: Open) -> None:
    view = job_in(served, "running")
    page = open_page(job_page(view))
    press(page, "Stop")
    press(dialog(page), "Stop the job")
    said(page, "Stopped")
    assert served.store.done == [("cancel", {"job_id": view["id"], "stop": True})]


def test_put_a_job_off_and_give_it_another_payload(served: Served, open_page: Open) -> None:
    view = job_in(served, "pending")
    page = open_page(job_page(view))
    press(page, "Reschedule")
    dialog(page).get_by_label("When").fill("soon")
    press(dialog(page), "Reschedule")
    expect(dialog(page).locator(".error")).to_contain_text("'soon' is no duration")
    dialog(page).get_by_label("When").fill("10m")
    press(dialog(page), "Reschedule")
    said(page, "Rescheduled")
    press(page, "Edit payload")
    dialog(page).get_by_label("Payload").fill('{"n": 98765432109876543210}')
    press(dialog(page), "Save the payload")
    expect(page.locator(".json .n")).to_have_text(
        ["98765432109876543210"]
    )  # as a list: before, there are several
    assert served.store.done == [
        ("reschedule", {"job_id": view["id"], "at": None, "in_": "10m"}),
        ("update_payload", {"job_id": view["id"], "payload": {"n": 98765432109876543210}}),
    ]


def test_run_a_pending_job_now(served: Served, open_page: Open) -> None:
    view = job_in(served, "pending")
    page = open_page(job_page(view))
    press(page, "Run now")
    expect(dialog(page).get_by_role("button", name="Run now")).to_be_focused()
    page.keyboard.press("Enter")
    said(page, "It is due now")
    assert served.store.done == [("reschedule", {"job_id": view["id"], "at": None, "in_": "0s"})]


def test_cancel_those_that_were_chosen(served: Served, open_page: Open) -> None:
    page = open_page("jobs?q=status%3Apending")
    boxes = page.get_by_role("checkbox")
    for place in (1, 2, 3):
        boxes.nth(place).check()
    expect(page.get_by_text("3 jobs selected")).to_be_visible()
    press(page, "Cancel selected")
    press(dialog(page), "Cancel 3 jobs")
    said(page, "3 jobs: 3 cancelled")
    expect(page.get_by_text("None selected")).to_be_visible()
    ((name, given),) = served.store.done
    assert (name, given["verb"], len(given["ids"])) == ("change_jobs", "cancel", 3)


def test_all_that_match_are_changed_once_their_number_was_typed(served: Served, open_page: Open) -> None:
    number = sum(view["status"] == "dead" for view in served.store.jobs.values())
    page = open_page("jobs?q=status%3Adead")
    press(page, "Requeue all matching")
    sheet = dialog(page)
    expect(sheet).to_contain_text(f"Requeue {number} jobs?")
    press(sheet, f"Requeue {number} jobs")
    expect(sheet.locator(".error")).to_contain_text(f"Type {number}")
    sheet.get_by_label(f"Type {number} to confirm").fill(str(number))
    press(sheet, f"Requeue {number} jobs")
    said(page, f"{number} jobs: {number} requeued")
    ((name, given),) = served.store.done
    assert (name, given["verb"], given["count"]) == ("change_jobs", "requeue", number)


def test_search_stands_in_the_address(served: Served, open_page: Open) -> None:
    page = open_page("jobs")
    page.get_by_role("combobox").fill("handler:invoice.render status:dead,succeeded key:invoice_*")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/jobs?q=handler%3Ainvoice.render+status%3Adead%2Csucceeded+key%3Ainvoice_*")
    page.locator("table.t tbody tr").first.wait_for()
    for row in page.locator("table.t tbody tr").all_inner_texts():
        assert "invoice.render" in row
        assert "invoice_" in row
    expect(page.get_by_role("combobox")).to_have_value(
        "handler:invoice.render status:dead,succeeded key:invoice_*"
    )


def test_a_search_is_completed_by_keyboard(served: Served, open_page: Open, shots: Path) -> None:
    page = open_page("jobs")
    search, offers = page.get_by_role("combobox"), page.get_by_role("option")
    assert served.store.asked["queues"] == 0  # nobody has come to search
    search.fill("stat")
    expect(offers).to_have_text(["status:one or more: status:dead,retrying"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(search).to_have_value("status:")
    page.keyboard.type("dead,succ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(search).to_have_value("status:dead,succeeded ")
    page.keyboard.type("invoice")
    expect(offers.first).to_have_text("handler:invoice.render")
    page.keyboard.press("ArrowDown")
    assert search.get_attribute("aria-activedescendant") == offers.first.get_attribute("id")
    page.screenshot(path=shots / "jobs-completion-wide-light.png")
    assert not Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    page.keyboard.press("Escape")
    expect(offers).to_have_count(0)
    expect(search).to_have_value("status:dead,succeeded invoice")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/jobs?q=status%3Adead%2Csucceeded+handler%3Ainvoice.render*")


def test_enter_is_the_main_button_and_the_focus_comes_back(served: Served, open_page: Open) -> None:
    page = open_page("crontab")
    press(page, "Pause daily-report")
    dialog(page).get_by_label("Reason").fill("tax season")
    page.keyboard.press("Enter")
    expect(dialog(page)).to_have_count(0)
    expect(page.get_by_role("button", name="Resume daily-report")).to_be_focused()
    assert served.store.done == [("pause_schedule", {"schedule_id": "daily-report", "note": "tax season"})]


def test_pages_of_a_list(served: Served, open_page: Open) -> None:
    page = open_page("jobs?q=")
    link = page.locator("table.t tbody a").first
    first = link.get_attribute("title")
    assert first is not None
    page.get_by_role("link", name="Next page").click()
    page.wait_for_url("**after=50-*")
    expect(link).not_to_have_attribute("title", first)
    page.get_by_role("link", name="First page").click()
    expect(link).to_have_attribute("title", first)


def test_jobs_begin_with_what_came_due_last(hurried: None, served: Served, open_page: Open) -> None:
    store = served.store
    for number in range(60):
        store.jobs[f"new{number}"] = {
            **job_in(served, "queued"),
            "id": f"new{number}",
            "due_at": stamp(store.now),
        }
    page = open_page("jobs")
    expect(page.get_by_role("combobox")).to_have_value("due<=now")
    expect(page.get_by_role("link", name="due by now")).to_have_attribute("aria-current", "true")
    rows = page.locator("table.t tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("new")
    soon = {**job_in(served, "queued"), "id": "soon", "due_at": stamp(now_ms() + 3_000)}
    store.jobs["soon"] = soon  # and is there once it is due, on a page that has been open before
    expect(rows.first).to_contain_text("soon")
    assert now_ms() >= ms_of(datetime.fromisoformat(soon["due_at"]))
    page.get_by_role("link", name="Next page").click()
    page.wait_for_url("**&now=2*&after=50-*")  # counted from the same instant, or there would be no such page
    expect(rows.first).to_contain_text("new")
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="pending", exact=True).click()
    page.wait_for_url("**/console/jobs?q=status%3Apending")
    expect(rows.first).to_contain_text("pending")
    page.get_by_role("link", name="to come").click()
    page.wait_for_url("**/console/jobs?q=status%3Apending+due%3Enow")
    page.get_by_role("link", name="any status").click()
    page.wait_for_url("**/console/jobs?q=due%3Enow")


def test_nothing_has_come_due_yet(served: Served, open_page: Open) -> None:
    served.store.jobs = {k: v for k, v in served.store.jobs.items() if v["status"] == "pending"}
    page = open_page("jobs")
    expect(page.get_by_text("Nothing has come due yet")).to_be_visible()
    page.get_by_role("link", name="any time").click()
    page.wait_for_url("**/console/jobs?q=")
    expect(page.locator("table.t tbody tr").first).to_be_visible()


# -- letters, replays, queues ----------------------------------------------------------------------------------------


def test_look_at_a_dead_letter_and_run_it_again(served: Served, open_page: Open) -> None:
    letter = letters(served.store)[0]
    page = open_page("dead")
    press(page, f"Details of {letter['id']}")
    expect(dialog(page)).to_contain_text(letter["attempts"][0]["token"])
    press(dialog(page), "Close")
    press(page, f"Requeue {letter['id']}")
    press(dialog(page), "Requeue")
    said(page, "1 requeued")
    ((name, given),) = served.store.done
    assert (name, given["wanted"].ids, given["payload"]) == ("requeue_letters", {letter["id"]}, None)


def test_give_a_dead_letter_another_payload(served: Served, open_page: Open) -> None:
    letter = letters(served.store)[0]
    page = open_page("dead")
    press(page, f"Details of {letter['id']}")
    press(dialog(page), "Edit and requeue")
    expect(dialog(page).get_by_label("Payload")).to_have_value(re.compile('"amount": 1234567890'))
    dialog(page).get_by_label("Payload").fill("[1]")
    press(dialog(page), "Requeue")
    expect(dialog(page).locator(".error")).to_contain_text("must be an object")
    dialog(page).get_by_label("Payload").fill('{"to": "right@example.org"}')
    press(dialog(page), "Requeue")
    said(page, "1 requeued")
    ((name, given),) = served.store.done
    assert (name, given["wanted"].ids, given["payload"]) == (
        "requeue_letters",
        {letter["id"]},
        {"to": "right@example.org"},
    )


def test_a_dead_job_gets_another_payload_though_its_own_is_gone(served: Served, open_page: Open) -> None:
    view = job_in(served, "dead")
    view["payload"] = None
    page = open_page(job_page(view))
    press(page, "Edit and requeue")
    expect(dialog(page)).to_contain_text("Its payload is no longer kept")
    dialog(page).get_by_label("Payload").fill('{"n": 1}')
    press(dialog(page), "Requeue")
    said(page, "1 requeued")
    assert served.store.done[0][1]["payload"] == {"n": 1}


def test_run_all_letters_again(served: Served, open_page: Open) -> None:
    number = sum(letter["id"] is not None for letter in letters(served.store))
    page = open_page("dead")
    press(page, "Requeue all")
    dialog(page).get_by_label(f"Type {number} to confirm").fill(str(number))
    press(dialog(page), "Requeue")
    said(page, f"{number} requeued")
    ((name, given),) = served.store.done
    assert (name, given["wanted"], given["everything"]) == ("requeue_letters", WantedLetters(), True)


def test_a_group_of_dead_letters_leads_to_them_and_runs_again(served: Served, open_page: Open) -> None:
    found = counted(letters(served.store))
    group = next(each for each in found if each["handler"] is not None and each["count"] > 1)
    told = f"Requeue {group['count']} letters of {group['handler']}: {group['error']}"
    page = open_page("dead")
    groups = page.get_by_role("table", name="Dead letters by handler and error")
    row = groups.get_by_role("row").filter(has=page.get_by_role("button", name=told, exact=True)).first
    row.get_by_role("link").click()
    page.wait_for_url("**/console/dead?group=*")
    shown = parse_qs(urlsplit(page.url).query)["group"][0]
    of = next(each for each in found if each["group"] == shown)
    listed = page.get_by_role("table", name="Dead letters", exact=True).locator("tbody tr")
    expect(listed).to_have_count(of["count"])
    press(page, "Requeue all that match")
    dialog(page).get_by_label(f"Type {of['count']} to confirm").fill(str(of["count"]))
    press(dialog(page), "Requeue")
    said(page, f"{of['count']} requeued")
    ((name, given),) = served.store.done
    assert (name, given["wanted"]) == ("requeue_letters", WantedLetters(group=shown))
    page.get_by_role("link", name="All groups").click()
    page.wait_for_url("**/console/dead")


def test_groups_that_are_not_all_counted_say_so(
    served: Served, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("pipeline.server.console.pages.dead")
    monkeypatch.setattr(module, "MOST_GROUPS", 3)
    monkeypatch.setattr(module, "SHOWN_GROUPS", 2)
    page = open_page("dead")
    rows = page.get_by_role("table", name="Dead letters by handler and error").locator("tbody tr")
    expect(rows).to_have_count(2)
    told = re.compile(r"the 2 largest of 3 groups in the latest \d+ letters; there are more")
    expect(page.get_by_text(told)).to_be_visible()


def test_a_bucket_that_has_not_ended_is_replayed_up_to_now(served: Served, open_page: Open) -> None:
    now = now_ms() // HOUR * HOUR
    before, running = stamp(now - 2 * HOUR), stamp(now)
    served.store.jobs = {at: {**job_in(served, "dead"), "id": at, "due_at": at} for at in (before, running)}
    page = open_page("buckets?scale=days")
    for bucket, end in ((before, stamp(now - HOUR)), (running, "")):
        page.get_by_role("button", name=f"Replay the bucket {bucket}").click()
        expect(dialog(page).get_by_label("From (inclusive)")).to_have_value(bucket)
        expect(dialog(page).get_by_label("To (exclusive)")).to_have_value(end)
        press(dialog(page), "Go back")
        expect(dialog(page)).to_have_count(0)


def test_what_stands_still_is_told_on_top(served: Served, open_page: Open) -> None:
    page = open_page("")
    told = page.locator(".banner").filter(has_text="Queue webhooks is paused.")
    expect(told).to_contain_text("240 runs waiting.")
    told.get_by_role("link", name="Look at the queue").click()
    page.wait_for_url("**/console/queues")


def test_replay_a_bucket_after_a_dry_run(served: Served, open_page: Open) -> None:
    page = open_page("buckets")
    page.get_by_role("button", name="Replay", exact=False).first.click()
    sheet = dialog(page)
    expect(sheet.get_by_role("button", name="Replay")).to_be_disabled()
    sheet.get_by_label("Limit per second").fill("5")
    press(sheet, "Dry run")
    expect(sheet.get_by_text("37 occurrences would run again.")).to_be_visible()
    expect(sheet).to_contain_text("37 dead")
    assert served.store.done == []
    press(sheet, "Replay")
    page.wait_for_url("**/console/replay?id=*")
    ((name, given),) = served.store.done
    assert (name, given["only"], given["rate"]) == ("start_replay", "failed", 5.0)


def test_cancel_and_resume_replays(served: Served, open_page: Open) -> None:
    running, _, interrupted, _ = served.store.replays
    page = open_page(f"replay?id={running['id']}")
    press(page, "Cancel")
    press(dialog(page), "Cancel the replay")
    said(page, "Cancelling")
    page = open_page(f"replay?id={interrupted['id']}")
    press(page, "Resume")
    said(page, "Resuming")
    assert [name for name, _ in served.store.done] == ["cancel_replay", "resume_replay"]


def test_pause_a_queue_with_a_reason_and_resume(served: Served, open_page: Open) -> None:
    page = open_page("queues", role=Role.OPERATOR)
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="mail", exact=True))
    press(row, "Pause mail")
    dialog(page).get_by_label("Reason").fill("mail server down")
    press(dialog(page), "Pause")
    said(page, "Paused")
    for told in ("paused", "mail server down", "by ana-operator"):
        expect(row).to_contain_text(told)
    press(row, "Resume mail")
    said(page, "Resumed")
    expect(row).to_contain_text("active")
    expect(row).not_to_contain_text("mail server down")
    assert served.store.done == [
        ("pause_queue", {"queue": "mail", "note": "mail server down"}),
        ("resume_queue", {"queue": "mail"}),
    ]


def test_purge_a_queue_once_what_waits_was_counted_and_typed(served: Served, open_page: Open) -> None:
    page = open_page("queues")
    press(page, "Purge default")
    said(page, "Nothing is waiting in default.")
    expect(dialog(page)).to_have_count(0)
    press(page, "Purge mail")
    sheet = dialog(page)
    expect(sheet).to_contain_text("Purge 120 runs from mail?")
    press(sheet, "Purge")
    expect(sheet.locator(".error")).to_contain_text("Type 120")
    assert served.store.done == []
    served.store.waiting["mail"] = 150  # what came since it was counted is left alone
    sheet.get_by_label("Type 120 to confirm").fill("120")
    press(sheet, "Purge")
    said(page, "120 runs in mail will end as cancelled.")
    assert served.store.done == [("purge_queue", {"queue": "mail", "ends": [120]})]
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="mail", exact=True))
    expect(row).to_contain_text("purge by ana-admin")
    for left, told in ((30, "30 of 120 left"), (0, None)):
        served.store.purges["mail"]["left"] = left
        press(page, "Refresh")
        expect(row).to_contain_text(told) if told else expect(row).not_to_contain_text("purg")
