"""How soon the pages of the console are painted, in a Chromium of this machine."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
VARIABLE = "DUELINE_CHROMIUM"
PAGES: Mapping[str, str] = {
    "now": "",
    "crontab": "crontab",
    "buckets": "buckets",
    "jobs": "jobs",
    "dead letters": "dead",
    "fleet": "fleet",
    "queues": "queues",
    "replays": "replays",
}
TIMES = 3
PATIENCE_MS = 30_000
VIEW = {"width": 1280, "height": 860}
PAINTED = """() => {
  const [found] = performance.getEntriesByName('first-contentful-paint')
  return found ? found.startTime : null
}"""
NOW = "() => performance.now()"
LIVE = ".fresh:not(.paused)"


class Paint(NamedTuple):
    """Of a page, ms from the navigation on: something is painted; it shows what there is, and goes on doing so."""

    first: float
    live: float


def chromium() -> str | None:
    """The program; None: there is none, or nothing to drive it with."""
    if find_spec("playwright") is None:
        return None
    return os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, PROGRAMS)), None)


def paints(program: str, url: str, pages: Mapping[str, str] = PAGES) -> dict[str, Paint]:
    """Of each page the median of some loads, each with nothing in the browser's cache."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            _painted(browser, f"{url}/console/")  # the first one starts the browser's own processes
            return {
                name: median([_painted(browser, f"{url}/console/{path}") for _ in range(TIMES)])
                for name, path in pages.items()
            }
        finally:
            browser.close()


def median(found: Sequence[Paint]) -> Paint:
    """Of each of both times."""
    return Paint(*(statistics.median(times) for times in zip(*found, strict=True)))


def _painted(browser: Browser, address: str) -> Paint:
    context = browser.new_context(viewport={"width": VIEW["width"], "height": VIEW["height"]})
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(address)
        page.locator(LIVE).wait_for()
        live = page.evaluate(NOW)
        page.wait_for_function(PAINTED)
        return Paint(page.evaluate(PAINTED), live)
    finally:
        context.close()
