"""Who may what: viewers see no controls and are refused all the same; a session ends with its token."""

from __future__ import annotations

import dataclasses
from functools import partial
from urllib.parse import urlencode

import httpx
import pytest
from browser.conftest import Open
from browser.places import NAMES, places
from browser.serve import Served
from browser.test_flows import dialog, job_in, job_page, press, said
from playwright.sync_api import expect

from pipeline.server.access import Role

pytestmark = pytest.mark.timeout(180)

get, post = partial(httpx.get, timeout=30), partial(httpx.post, timeout=30)
FREE = {
    "Menu",
    "Refresh",
    "Pause updates",
    "Local",
    "UTC",
    "Auto",
    "Light",
    "Dark",
    "Sign out",
    "Search",
    "Filter",
    "copy",
    "Details",
    "Check again",
}
OTHERS = ("schedule-edit", "schedule-new", "job-new", "tokens")
"""Pages that are not for viewers."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OTHERS])
def test_a_viewer_sees_no_controls(name: str, served: Served, open_page: Open) -> None:
    place = next(each for each in places(served.store) if each.name == name)
    page = open_page(place.address, role=Role.VIEWER, live=place.live)
    expect(page.get_by_text(place.shows).first).to_be_visible()
    assert set(page.locator("button:visible").all_inner_texts()) <= FREE
    assert page.get_by_role("checkbox").count() == 0
    expect(page.get_by_text("ana-viewer · viewer")).to_be_visible()


def test_a_viewer_sees_no_controls_of_jobs(open_page: Open) -> None:
    page = open_page("jobs", role=Role.VIEWER)
    assert set(page.locator("button:visible").all_inner_texts()) <= FREE
    assert page.get_by_role("checkbox").count() == 0


@pytest.mark.parametrize(
    ("role", "verbs"),
    [
        (Role.VIEWER, []),
        (Role.OPERATOR, ["Pause default", "Pause mail", "Resume webhooks"]),
        (
            Role.ADMIN,
            [
                *("Pause default", "Purge default", "Pause mail", "Purge mail"),
                *("Resume webhooks", "Purge webhooks"),
            ],
        ),
    ],
)
def test_a_role_has_its_controls_of_queues(role: Role, verbs: list[str], open_page: Open) -> None:
    page = open_page("queues", role=role)
    expect(page.locator("table.t tbody tr")).to_have_count(3)
    buttons = page.locator("main table.t button").all()
    assert [each.get_attribute("aria-label") for each in buttons] == verbs


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("schedule/edit", "Changing schedules needs the operator role."),
        ("schedule/edit?id=daily-report", "Changing schedules needs the operator role."),
        ("job/new", "Creating jobs needs the operator role."),
    ],
)
def test_a_viewer_gets_no_form(address: str, told: str, open_page: Open) -> None:
    page = open_page(address, role=Role.VIEWER, live=False)
    expect(page.get_by_text(told)).to_be_visible()
    expect(page.get_by_role("textbox")).to_have_count(0)


def test_a_role_taken_away_is_refused_though_the_page_has_its_buttons(
    served: Served, open_page: Open
) -> None:
    before = set(served.book.records)
    token = served.token(Role.OPERATOR)
    page = open_page(job_page(job_in(served, "pending")), token=token)
    for record in list(served.book.records.values()):
        if record.id not in before:  # others belong to other tests
            served.book.put(dataclasses.replace(record, role=Role.VIEWER))
    press(page, "Cancel")
    press(dialog(page), "Cancel the job")
    said(page, "Not allowed: needs the role operator")
    assert served.store.done == []


def test_a_revoked_token_ends_open_pages(served: Served, open_page: Open) -> None:
    token = served.token(Role.OPERATOR)
    page = open_page("jobs?q=status%3Adead", token=token)
    served.book.remove(token.split("_")[1])
    press(page, "Refresh")
    page.wait_for_url("**/console/sign-in?next=*")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.get_by_role("alert")).to_have_text("Your session has ended.")


def test_sign_in_and_out(served: Served, open_page: Open) -> None:
    page = open_page("jobs?q=status%3Adead", role=None, live=False)
    page.get_by_label("Token").fill("dl_wrong")
    press(page, "Sign in")
    expect(page.get_by_role("alert")).to_have_text("this is no token of ours")
    page.get_by_label("Token").fill(served.tokens[Role.VIEWER])
    press(page, "Sign in")
    page.wait_for_url("**/console/jobs?q=status%3Adead")
    page.locator(".fresh:not(.paused)").wait_for()
    cookie = next(each for each in page.context.cookies() if each["name"] == "dueline_session")
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    press(page, "Sign out")
    page.wait_for_url("**/console/sign-in")
    page.goto(f"{served.url}/console/fleet")
    page.wait_for_url("**/console/sign-in?next=%2Fconsole%2Ffleet")


def test_who_is_limited_to_a_queue_sees_that_queue(served: Served, open_page: Open) -> None:
    token = served.token(Role.OPERATOR, queues=frozenset({"mail"}))
    page = open_page("queues", token=token)
    expect(page.locator("table.t tbody tr")).to_have_count(1)
    expect(page.get_by_role("link", name="Now", exact=True)).to_have_count(0)
    page.goto(f"{served.url}/console/buckets")
    expect(page.get_by_text("Not allowed")).to_be_visible()
    expect(page.locator(".fresh")).to_be_hidden()
    page.goto(f"{served.url}/console/")
    page.wait_for_url("**/console/jobs")
    expect(page.locator("table.t tbody tr")).to_have_count(50)
    other = next(view for view in served.store.jobs.values() if view["queue"] == "default")
    page.goto(f"{served.url}/console/job?{urlencode({'id': other['id']})}")
    expect(page.get_by_text("Not allowed")).to_be_visible()
    assert other["payload"] not in page.content()


@pytest.mark.parametrize(
    "there",
    ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/elsewhere"],
)
def test_sign_in_leads_to_our_pages_only(there: str, served: Served) -> None:
    form = {"token": served.tokens[Role.VIEWER], "next": there}
    answer = post(f"{served.url}/console/sign-in", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/")


def test_nobody_without_a_session(served: Served) -> None:
    for address in ("", "jobs", "schedule/edit", "xyz"):
        answer = get(f"{served.url}/console/{address}")
        assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/console/sign-in")
    socket = get(f"{served.url}/console/_nicegui_ws/socket.io/?EIO=4&transport=polling")
    assert socket.status_code == 403


def test_another_site_opens_no_socket(served: Served) -> None:
    cookies = {"dueline_session": served.cookie(served.tokens[Role.ADMIN])}
    address = f"{served.url}/console/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert get(address, cookies=cookies).status_code == 200
    assert get(address, cookies=cookies, headers={"origin": "https://evil.example"}).status_code == 403


def test_signing_out_asked_by_another_site_is_none(served: Served) -> None:
    cookie = served.cookie(served.tokens[Role.VIEWER])
    post(f"{served.url}/console/sign-out", cookies={"dueline_session": cookie}, data={"csrf": "0" * 64})
    answer = get(f"{served.url}/console/session", cookies={"dueline_session": cookie})
    assert answer.status_code == 204


def test_headers_of_pages(served: Served) -> None:
    cookies = {"dueline_session": served.cookie(served.tokens[Role.VIEWER])}
    for address in ("jobs", "sign-in", "xyz"):
        headers = get(f"{served.url}/console/{address}", cookies=cookies).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"


MADE_UP = """() => {
  const own = window.clientId;
  const broken = { client_id: own, id: 1, listener_id: "none", args: ["{"] };
  for (const said of [{}, null, "x", 7, { client_id: own }, broken])
    for (const name of ["event", "ack", "javascript_response", "handshake"]) socket.emit(name, said);
  socket.emit("log", { client_id: own, level: "error", message: "forged" });
}"""


def test_what_no_page_says_is_not_heard_and_leaves_no_line_in_the_log(
    open_page: Open, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    page = open_page("queues", role=Role.VIEWER)
    page.evaluate(MADE_UP)
    press(page, "Refresh")  # what was said before has been heard by then
    page.evaluate("new Promise((done) => socket.emit('handshake', {}, done))")
    assert [record.getMessage() for record in caplog.records] == []
    assert "Traceback" not in "".join(capfd.readouterr())
    expect(page.locator(".fresh")).to_have_text("Live")
