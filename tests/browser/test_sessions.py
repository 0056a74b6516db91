"""A form whose session ends keeps what was typed, and goes on with it after a sign-in in another tab."""

from __future__ import annotations

import pytest
from browser.conftest import Open
from browser.serve import Served
from browser.test_flows import press
from playwright.sync_api import Page, expect

from pipeline.server.access import Role

pytestmark = pytest.mark.timeout(180)
ENDED = "Your session has ended."


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms look for their session every half second."""
    from pipeline.server.console import sessions

    monkeypatch.setattr(sessions, "EVERY_S", 0.5)


def _typed(page: Page) -> None:
    page.get_by_label("Handler").fill("email.send")
    page.get_by_label("Payload").fill('{"n": 1}')
    expect(page.get_by_label("Payload")).to_have_value('{"n": 1}')


def _signed_in_beside(page: Page, token: str) -> None:
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Sign in again").click()
    beside = opened.value
    beside.get_by_label("Token").fill(token)
    press(beside, "Sign in")
    expect(beside.get_by_role("heading", level=1)).to_have_text("You are signed in")
    beside.close()


@pytest.mark.parametrize(
    ("address", "press_first"), [("job/new", False), ("job/new", True), ("schedule/edit", False)]
)
def test_a_form_whose_token_is_revoked_goes_on_after_a_sign_in(
    address: str, press_first: bool, hurried: None, served: Served, open_page: Open
) -> None:
    token = served.token(Role.OPERATOR)
    page = open_page(address, token=token, live=False)
    _typed(page)
    served.book.remove(token.split("_")[1])
    if press_first:
        press(page, "Create")
    expect(page.get_by_text(ENDED)).to_be_visible()
    _signed_in_beside(page, served.tokens[Role.OPERATOR])
    expect(page.get_by_text(ENDED)).to_have_count(0)
    expect(page.get_by_label("Handler")).to_have_value("email.send")
    expect(page.get_by_label("Payload")).to_have_value('{"n": 1}')
    if address == "job/new":
        press(page, "Create")
        page.wait_for_url("**/console/job?id=jnew")
        assert served.store.done == [
            ("create_job", {"request": {"handler": "email.send", "payload": {"n": 1}, "in_": "0s"}})
        ]


def test_a_form_that_is_signed_in_asks_for_nothing_more(
    hurried: None, served: Served, open_page: Open
) -> None:
    page = open_page("job/new", token=served.token(Role.OPERATOR), live=False)
    page.wait_for_function("window.did_handshake")
    page.wait_for_timeout(1_500)
    expect(page.get_by_text(ENDED)).to_have_count(0)
    expect(page.get_by_role("link", name="Sign in again")).to_have_count(0)
