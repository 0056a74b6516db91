"""A new job by hand: now, after a time, or at an instant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser.conftest import Open
from browser.made import HOSTILE
from browser.serve import Served
from browser.test_flows import press
from browser.test_instants import picked
from playwright.sync_api import Page, expect

from pipeline.server.access import Role

pytestmark = pytest.mark.timeout(180)
WARNING = "No live worker on queue default knows"


def _request(served: Served) -> dict[str, Any]:
    ((name, given),) = served.store.done
    assert name == "create_job"
    request: dict[str, Any] = given["request"]
    return request


def _created(page: Page) -> None:
    press(page, "Create")
    page.wait_for_url("**/console/job?id=jnew")


def test_a_job_now(served: Served, open_page: Open) -> None:
    page = open_page("jobs")
    page.get_by_role("link", name="New job").click()
    page.get_by_label("Handler").fill("email.send")
    expect(page.get_by_label("How long from now")).to_be_hidden()
    expect(page.get_by_label("Instant")).to_be_hidden()
    _created(page)
    assert _request(served) == {"handler": "email.send", "payload": {}, "in_": "0s"}


def test_a_job_after_a_time_with_all_that_the_form_has(served: Served, open_page: Open) -> None:
    page = open_page("job/new", live=False)
    page.get_by_label("Handler").fill("webhook.post")
    page.get_by_label("Queue").fill("mail")
    page.get_by_label("When").select_option("in")
    page.get_by_label("How long from now").fill("1h30m")
    page.get_by_label("Key").fill(HOSTILE[0])
    page.get_by_label("Payload").fill('{"amount": 123456789012345678901234567890}')
    _created(page)
    assert _request(served) == {
        "handler": "webhook.post",
        "queue": "mail",
        "key": HOSTILE[0],
        "in_": "1h30m",
        "payload": {"amount": 123456789012345678901234567890},
    }


def test_a_job_at_an_instant_that_is_picked(served: Served, open_page: Open) -> None:
    page = open_page("job/new", live=False, timezone_id="Asia/Kolkata")
    page.get_by_label("Handler").fill("email.send")
    page.get_by_label("When").select_option("at")
    expect(picked(page, "Instant", "2027-07-01T09:00")).to_have_value("2027-07-01T09:00:00+05:30")
    _created(page)
    assert _request(served)["at"] == "2027-07-01T09:00:00+05:30"


def test_all_that_is_wrong_is_told_beside_its_field(served: Served, open_page: Open, shots: Path) -> None:
    page = open_page("job/new", live=False)
    page.get_by_label("When").select_option("in")
    page.get_by_label("How long from now").fill("soon")
    page.get_by_label("Payload").fill("[1]")
    press(page, "Create")
    expect(page.locator(".field .error")).to_have_count(3)
    expect(page.get_by_text("Check Handler, How long from now, Payload")).to_be_visible()
    page.screenshot(path=shots / "job-new-wrong.png", full_page=True)
    page.get_by_label("Payload").fill("{}")
    expect(page.locator(".field .error")).to_have_count(2)
    page.get_by_label("Handler").fill("email.send")
    page.get_by_label("When").select_option("now")
    expect(page.get_by_text("It was not created.")).to_have_count(0)
    page.get_by_label("Queue").fill("nowhere")
    press(page, "Create")
    expect(page.locator(".field", has_text="Queue").locator(".error")).to_have_text(
        "there is no queue 'nowhere'"
    )
    assert served.store.done == []


def test_a_handler_that_no_worker_knows_is_told_and_taken(served: Served, open_page: Open) -> None:
    page = open_page("job/new", live=False)
    page.get_by_label("Handler").fill("does.not.exist")
    expect(page.get_by_text(f"{WARNING} does.not.exist; runs wait until one does.")).to_be_visible()
    page.get_by_label("Handler").fill("email.send")
    expect(page.get_by_text(WARNING)).to_have_count(0)
    page.get_by_label("Queue").fill("mail")
    expect(page.get_by_text("No live worker on queue mail knows email.send")).to_be_visible()
    _created(page)
    assert _request(served)["queue"] == "mail"


def test_a_job_of_another_queue_is_refused(served: Served, open_page: Open) -> None:
    page = open_page("job/new", token=served.token(Role.OPERATOR, queues=frozenset({"mail"})), live=False)
    page.get_by_label("Handler").fill("email.send")
    press(page, "Create")
    expect(page.get_by_text("Not allowed:")).to_be_visible()
    assert served.store.done == []


def test_a_store_that_does_not_confirm_says_to_look_first(served: Served, open_page: Open) -> None:
    page = open_page("job/new", live=False)
    page.get_by_label("Handler").fill("email.send")
    served.store.broken = True
    press(page, "Create")
    expect(page.get_by_text("Look among the jobs whether it is there")).to_be_visible()
    expect(page.get_by_label("Handler")).to_have_value("email.send")


def test_a_payload_as_large_as_one_may_be_comes_through(served: Served, open_page: Open) -> None:
    """A message that is too large for the socket is dropped without a word, and what stood there before would be
    taken."""
    page = open_page("job/new", live=False)
    page.get_by_label("Handler").fill("email.send")
    text = "x" + "\U0001f600" * 40_000 + '"' * 300_000  # on its way some times as long
    page.get_by_label("Payload").fill(json.dumps({"text": text}, ensure_ascii=False))
    _created(page)
    assert _request(served)["payload"] == {"text": text}


def test_what_is_too_long_to_be_sent_is_told_and_nothing_is_done(served: Served, open_page: Open) -> None:
    page = open_page("job/new", live=False)
    page.get_by_label("Handler").fill("email.send")
    payload = page.get_by_label("Payload")
    payload.fill('{"a": 1}')
    payload.blur()
    payload.fill('{"text": "%s"}' % ("x" * 4_000_000))
    press(page, "Create")
    expect(page.locator(".field", has_text="Payload").locator(".error")).to_contain_text("It is too long")
    press(page, "Create")
    payload.fill('{"a": 2}')
    _created(page)
    assert _request(served)["payload"] == {"a": 2}


# -- the same warning of schedules -----------------------------------------------------------------------------------


def test_a_schedule_of_a_handler_that_no_worker_knows(served: Served, open_page: Open) -> None:
    page = open_page("schedule/edit", live=False)
    page.get_by_label("Handler").fill("does.not.exist")
    warning = page.locator(".field", has_text="Handler").locator(".warning")
    expect(warning).to_have_text(f"{WARNING} does.not.exist; runs wait until one does.")
    page.get_by_label("Id", exact=True).fill("x")
    page.get_by_label("Every").fill("90s")
    press(page, "Create")
    page.wait_for_url("**/console/schedule?id=x")
    expect(page.get_by_text(f"{WARNING} does.not.exist; runs wait until one does.")).to_be_visible()


def test_a_schedule_of_a_known_handler_warns_of_nothing(served: Served, open_page: Open) -> None:
    view = served.store.schedules["daily-report"]
    view["spec"]["handler"] = "email.send"
    page = open_page("schedule?id=daily-report")
    expect(page.get_by_text("every day at 02:30 Berlin")).to_be_visible()
    expect(page.get_by_text("No live worker")).to_have_count(0)
