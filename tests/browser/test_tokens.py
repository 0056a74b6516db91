"""Tokens in the console: for admins of all queues alone, shown once, revoked after a question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser.conftest import Open
from browser.made import HOSTILE
from browser.serve import Served
from browser.test_flows import dialog, narrow, press, said
from playwright.sync_api import Browser, expect

from pipeline.server.access import Role

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize(
    ("role", "queues", "told"),
    [
        (Role.VIEWER, None, "needs the role admin"),
        (Role.OPERATOR, None, "needs the role admin"),
        (Role.ADMIN, frozenset({"mail"}), "is limited to"),
        (Role.ADMIN, None, None),
    ],
)
def test_who_sees_tokens(
    role: Role, queues: frozenset[str] | None, told: str | None, served: Served, open_page: Open
) -> None:
    own = served.token(role, queues=queues)
    page = open_page("queues", token=own)
    expect(page.get_by_role("link", name="Tokens")).to_have_count(0 if told else 1)
    page.goto(f"{served.url}/console/tokens")
    if told is None:
        expect(page.get_by_role("row", name="ana-viewer").first).to_be_visible()
        expect(page.get_by_role("button", name="New token")).to_be_visible()
    else:
        expect(page.get_by_text("Not allowed")).to_be_visible()
        expect(page.get_by_text(told)).to_be_visible()
        expect(page.get_by_role("button", name="New token")).to_have_count(0)
        assert own.split("_")[1] not in page.content()


def test_a_token_is_made_and_shown_once(served: Served, open_page: Open, shots: Path) -> None:
    page = open_page("tokens")
    press(page, "New token")
    ask = dialog(page)
    ask.get_by_label("Name").fill(HOSTILE[0])
    ask.get_by_label("Role").select_option("operator")
    ask.get_by_label("Queues").fill("mail, webhooks")
    ask.get_by_label("Expires in").fill("soon")
    press(ask, "Create")
    expect(ask.locator(".field", has_text="Expires in").locator(".error")).to_contain_text("soon")
    assert served.store.done == []
    ask.get_by_label("Expires in").fill("90d")
    page.screenshot(path=shots / "question-new-token-wide-light.png")
    press(ask, "Create")
    secret = dialog(page).locator("code")
    expect(secret).to_contain_text("dl_")
    token = secret.inner_text()
    expect(dialog(page).get_by_role("button", name="copy the token")).to_have_attribute("data-copy", token)
    assert not Axe().run(page, "dialog").response["violations"]
    narrow(page)
    page.screenshot(path=shots / "question-token-shown-narrow-light.png")
    ((name, given),) = served.store.done
    assert name == "create_token"
    assert given == {
        "called": HOSTILE[0],
        "with_role": "operator",
        "queues": ("mail", "webhooks"),
        "expires_in": "90d",
    }
    press(dialog(page), "Done")
    expect(dialog(page)).to_have_count(0)
    row = page.get_by_role("row", name=HOSTILE[0])
    expect(row).to_contain_text("operator")
    expect(row).to_contain_text("webhooks")
    expect(row).to_contain_text("by ana-admin")
    assert token not in page.content()
    assert page.evaluate("window.hacked") is None


def test_a_name_that_is_none_is_told_beside_it(served: Served, open_page: Open) -> None:
    page = open_page("tokens")
    press(page, "New token")
    press(dialog(page), "Create")
    expect(dialog(page).locator(".field", has_text="Name").locator(".error")).to_contain_text("1 to 80")
    press(dialog(page), "Go back")
    expect(dialog(page)).to_have_count(0)
    assert served.store.done == []


def test_a_token_is_revoked_after_a_question(served: Served, open_page: Open) -> None:
    own = served.token(Role.VIEWER, queues=frozenset({"mail"}))
    page = open_page("tokens")
    row = page.get_by_role("row").filter(has_text=own.split("_")[1])
    row.get_by_role("button", name="Revoke ana-viewer").click()
    press(dialog(page), "Go back")
    assert served.store.done == []
    row.get_by_role("button", name="Revoke ana-viewer").click()
    expect(dialog(page)).not_to_contain_text("signed out")
    expect(dialog(page)).not_to_contain_text("the last one")
    press(dialog(page), "Revoke")
    said(page, "Revoked")
    expect(row).to_have_count(0)
    assert served.book.find(own.split("_")[1]) is None


def test_who_revokes_their_own_token_is_warned_and_signed_out(served: Served, open_page: Open) -> None:
    own = served.token(Role.ADMIN)
    page = open_page("tokens", token=own)
    row = page.get_by_role("row").filter(has_text=own.split("_")[1])
    row.get_by_role("button", name="Revoke ana-admin").click()
    expect(dialog(page)).to_contain_text("You are signed in with it, and will be signed out.")
    press(dialog(page), "Revoke")
    page.wait_for_url("**/console/sign-in?next=*")


@pytest.fixture
def unlocked(server: Served) -> Iterator[Served]:
    """As before the first token was made."""
    kept = dict(server.book.records)
    server.book.records.clear()
    yield server
    server.book.records.clear()
    server.book.records.update(kept)


def test_the_first_token_stays_in_sight_though_it_closes_the_door(
    unlocked: Served, served: Served, chromium: Browser
) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{served.url}/console/tokens")
    expect(page.get_by_text("Anyone who can reach this server is an admin.")).to_be_visible()
    press(page, "New token")
    expect(dialog(page).get_by_label("Role")).to_have_value("admin")
    dialog(page).get_by_label("Name").fill("ana")
    press(dialog(page), "Create")
    token = dialog(page).locator("code").inner_text()
    page.wait_for_timeout(6_000)  # the page behind it has asked again, and may not see anything any more
    expect(dialog(page)).to_contain_text("you will be asked to sign in with it")
    press(dialog(page), "Done")
    page.wait_for_url("**/console/sign-in?next=%2Fconsole%2Ftokens*")
    page.get_by_label("Token").fill(token)
    press(page, "Sign in")
    expect(page.get_by_role("row", name="ana")).to_be_visible()
    press(page, "Revoke ana")
    expect(dialog(page)).to_contain_text("It is the last one")
    context.close()
