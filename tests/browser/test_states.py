"""Pages that cannot ask, are behind, or are not looked at."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from browser.conftest import Open, until
from browser.serve import Served
from browser.test_flows import dialog, job_in, job_page, press, said
from playwright.sync_api import Page, expect

from pipeline.readmodel.questions import Freshness

pytestmark = pytest.mark.timeout(180)

BROKEN = "The store cannot be reached."
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_broken_store_is_told_and_recovered_from(hurried: None, served: Served, open_page: Open) -> None:
    page = open_page("jobs")
    served.store.broken = True
    expect(page.get_by_text(BROKEN)).to_be_visible()
    expect(page.get_by_text("This page is as of")).to_be_visible()
    expect(page.locator("table.t tbody tr").first).to_be_visible()
    served.store.broken = False
    expect(page.get_by_text(BROKEN)).to_have_count(0)
    expect(page.locator(".page-body.dimmed")).to_have_count(0)


def test_a_search_that_takes_several_refreshes_keeps_what_it_found(
    hurried: None, served: Served, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.server.console.parts.pager.FILL_S", -1.0)  # one answer a refresh
    monkeypatch.setattr("browser.fake.MOST", 20)
    page = open_page("jobs?q=")
    rows = page.locator("table.t tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("checkbox").nth(1).check()
    expect(page.get_by_text("1 job selected")).to_be_visible()
    before = served.store.asked["jobs"]
    seen = set()
    while served.store.asked["jobs"] < before + 7:  # more than a whole page's worth
        seen.add(rows.count())
        page.wait_for_timeout(50)
    assert seen == {50}
    expect(page.get_by_text("1 job selected")).to_be_visible()


@pytest.mark.slow
def test_pages_opened_while_the_store_is_broken(
    hurried: None, served: Served, open_page: Open, shots: Any
) -> None:
    served.store.broken = True
    page = open_page("", live=False)
    for address in (
        "crontab",
        "schedule?id=daily-report",
        "buckets",
        "job?id=x",
        "dead",
        "fleet",
        "queues",
        "replays",
        "activity",
        "",
    ):
        page.goto(f"{served.url}/console/{address}")
        expect(page.get_by_text(BROKEN)).to_be_visible()
        expect(page.get_by_text("Nothing can be shown yet.")).to_be_visible()
    page.screenshot(path=shots / "broken-now.png")
    served.store.broken = False
    expect(page.get_by_text(BROKEN)).to_have_count(0)
    expect(page.get_by_text("1,048,213")).to_be_visible()


def test_a_form_while_the_store_is_broken_keeps_what_was_typed(served: Served, open_page: Open) -> None:
    page = open_page("schedule/edit", live=False)
    page.get_by_label("Id", exact=True).fill("x")
    page.get_by_label("Every").fill("90s")
    page.get_by_label("Handler").fill("h")
    served.store.broken = True
    press(page, "Create")
    expect(page.get_by_text("It was not confirmed.")).to_be_visible()
    expect(page.get_by_text("Look at the crontab before you try again.")).to_be_visible()
    expect(page.get_by_label("Handler")).to_have_value("h")
    served.store.broken = False
    press(page, "Create")
    page.wait_for_url("**/console/schedule?id=x")


def test_a_change_while_the_store_is_broken(served: Served, open_page: Open) -> None:
    page = open_page(job_page(job_in(served, "pending")))
    press(page, "Cancel")
    served.store.broken = True
    press(dialog(page), "Cancel the job")
    said(page, "The store cannot be reached: no broker answers at 127.0.0.1:9092")
    assert served.store.done == []


def test_bones_stand_where_an_answer_is_waited_for(served: Served, open_page: Open, shots: Any) -> None:
    served.store.hold = hold = threading.Event()
    page = open_page("jobs", live=False)
    expect(page.get_by_label("loading")).to_be_visible()
    page.screenshot(path=shots / "loading-jobs.png")
    hold.set()
    expect(page.locator("table.t tbody tr").first).to_be_visible()
    expect(page.get_by_label("loading")).to_have_count(0)


def test_a_slow_question_holds_up_no_other_page(served: Served, open_page: Open) -> None:
    page = open_page("fleet")
    served.store.hold = hold = threading.Event()
    slow = open_page("jobs", live=False)
    expect(slow.get_by_label("loading")).to_be_visible()
    served.store.hold = None
    press(page, "Refresh")
    page.goto(f"{served.url}/console/queues")
    page.locator(".fresh:not(.paused)").wait_for()
    expect(slow.get_by_label("loading")).to_be_visible()
    hold.set()
    expect(slow.locator("table.t tbody tr").first).to_be_visible()


@pytest.mark.parametrize(
    ("fresh", "told"),
    [
        (
            Freshness(behind=1234, age_ms=42_000, ready=True, problem=None),
            "1,234 records behind, the oldest 42 s old",
        ),
        (Freshness(behind=9, age_ms=10, ready=False, problem=None), "The read model is catching up"),
        (
            Freshness(behind=0, age_ms=10, ready=True, problem="no broker answers."),
            "no broker answers. It will catch up by itself.",
        ),
    ],
)
def test_a_read_model_that_is_behind_is_told(
    fresh: Freshness, told: str, hurried: None, served: Served, open_page: Open
) -> None:
    served.store.fresh = fresh
    page = open_page("crontab", live=False)
    expect(page.get_by_text(told)).to_be_visible()
    expect(page.locator("table.t tbody tr").first).to_be_visible()
    served.store.fresh = Freshness(behind=0, age_ms=10, ready=True, problem=None)
    expect(page.get_by_text(told)).to_have_count(0)


def test_what_is_not_there(open_page: Open) -> None:
    for address, told in (
        ("job?id=nope", "No such job"),
        ("job?id=odd", "No such job"),
        ("schedule?id=nope", "No such schedule"),
        ("replay?id=nope", "No such replay"),
    ):
        page = open_page(address, live=False)
        expect(page.get_by_text(told)).to_be_visible()
        expect(page.locator(".fresh")).to_be_hidden()
        expect(page.get_by_role("button", name="Refresh")).to_be_hidden()


def test_a_cursor_that_is_none(open_page: Open) -> None:
    page = open_page("jobs?after=zzz", live=False)
    expect(page.get_by_text("cursor: is of another list")).to_be_visible()
    expect(page.locator(".fresh")).to_be_hidden()


def test_a_state_that_is_none(open_page: Open) -> None:
    page = open_page("crontab?state=odd", live=False)
    expect(page.get_by_text("state: 'odd' is none of")).to_be_visible()
    expect(page.locator(".fresh")).to_be_hidden()


def test_a_hidden_tab_asks_for_nothing(hurried: None, served: Served, open_page: Open) -> None:
    page = open_page("queues")
    _asks(served, page)
    page.evaluate(HIDE, True)
    _rests(served, page)
    expect(page.locator(".fresh")).to_have_text("Live")
    before = served.store.asked["queues"]
    page.evaluate(HIDE, False)
    until(lambda: served.store.asked["queues"] > before)
    _asks(served, page)


def test_a_paused_page_asks_for_nothing(hurried: None, served: Served, open_page: Open) -> None:
    page = open_page("queues")
    press(page, "Pause updates")
    expect(page.locator(".fresh")).to_have_text("Paused")
    _rests(served, page)
    press(page, "Resume updates")
    expect(page.locator(".fresh")).to_have_text("Live")
    _asks(served, page)


def _asks(served: Served, page: Page) -> None:
    before = served.store.asked["queues"]
    until(lambda: served.store.asked["queues"] > before + 1)


def _rests(served: Served, page: Page) -> None:
    """For more than twice the time in which it would have asked. That it is to rest may be on its way yet."""
    page.evaluate("new Promise((done) => socket.emit('handshake', {}, done))")  # it was heard

    def rests() -> bool:
        before = served.store.asked["queues"]
        page.wait_for_timeout(1_200)
        return served.store.asked["queues"] == before

    until(rests)


def test_closed_pages_leave_nothing_behind(
    hurried: None, served: Served, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nicegui import core
    from nicegui.client import Client

    monkeypatch.setattr(core.app.config, "reconnect_timeout", 0.2)
    before = set(Client.instances)
    page = open_page("fleet")
    assert set(Client.instances) - before
    page.close()
    until(lambda: not set(Client.instances) - before)


def test_a_server_that_fails_says_so_and_tells_nothing_of_its_inside(
    hurried: None, served: Served, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page("fleet")
    monkeypatch.setattr("browser.fake.Questions.fleet", lambda _: {"secret": "inside"})
    expect(page.get_by_text("The server failed to answer; its log says why.")).to_be_visible()
    assert "KeyError" not in page.content()
    monkeypatch.undo()
    expect(page.get_by_text("The server failed to answer")).to_have_count(0)
