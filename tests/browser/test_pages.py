"""Each page draws, wide and narrow, light and dark; without a violation of axe, an error, or a wide page to scroll."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser.conftest import NARROW, WIDE, Open
from browser.places import NAMES, places
from browser.serve import Served
from browser.test_flows import narrow
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.timeout(180)

PAINT_MS = 15_000
"""A bound for a machine that does other things too; the figures are kept beside the pictures."""
ENOUGH = {"exclude": [["tbody tr:nth-child(n+7)"]]}
"""Rows are alike; their contrasts are what axe takes longest for."""


@pytest.mark.parametrize("name", NAMES)
def test_page(name: str, served: Served, open_page: Open, shots: Path) -> None:
    place = next(each for each in places(served.store) if each.name == name)
    page = open_page(place.address, live=place.live)
    expect(page.get_by_role("heading", level=1)).to_have_text(place.title)
    expect(page.get_by_text(place.shows).first).to_be_visible()
    expect(page.locator("main")).to_have_count(1)
    assert page.evaluate("window.hacked") is None  # the installation is full of hostile names
    assert page.locator("main img, main script").count() == 0
    _paint(page, name, shots)
    _look(page, shots / f"{name}-wide-light.png")
    narrow(page)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    _look(page, shots / f"{name}-narrow-dark.png", rules=("color-contrast", "target-size", "region"))


def test_sign_in(served: Served, open_page: Open, shots: Path) -> None:
    page = open_page("", role=None, live=False)
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    _look(page, shots / "sign-in-wide-light.png")
    narrow(page)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    _look(page, shots / "sign-in-narrow-dark.png")


def _look(page: Page, picture: Path, *, rules: tuple[str, ...] = ()) -> None:
    """`rules` of axe; all if there are none."""
    page.screenshot(path=picture, full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    only = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
    found = Axe().run(page, ENOUGH, {"resultTypes": ["violations"], **only}).response["violations"]
    assert not found, "\n".join(f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found)


def _paint(page: Page, name: str, shots: Path) -> None:
    painted = page.wait_for_function("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    first = painted.json_value()
    (shots / f"paint-{name}.txt").write_text(
        f"{first:.0f} ms\n"
    )  # a file each: pages are looked at side by side
    assert first < PAINT_MS


def test_questions(served: Served, open_page: Open, shots: Path) -> None:
    """What is asked before something is changed, wide and narrow."""
    pending = next(view["id"] for view in served.store.jobs.values() if view["status"] == "pending")
    questions = (
        (f"job?id={pending}", "Edit payload"),
        ("schedule?id=daily-report", "Backfill"),
        ("schedule?id=daily-report", "Pause"),
        ("replays", "Replay a window"),
        ("jobs?q=status%3Adead", "Requeue all matching"),
    )
    page = open_page("queues")
    for address, name in questions:
        page.set_viewport_size(WIDE)
        page.goto(f"{served.url}/console/{address}")
        page.locator(".fresh:not(.paused)").wait_for()
        page.locator("main").get_by_role("button", name=name, exact=True).first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert page.evaluate("scrollY") == 0
        file = f"question-{name.lower().replace(' ', '-')}"
        _look(page, shots / f"{file}-wide-light.png")
        narrow(page)
        box = page.get_by_role("dialog").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= NARROW["width"]
        page.screenshot(path=shots / f"{file}-narrow-light.png")
