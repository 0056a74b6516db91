"""The pictures of docs/console.md: `python -m browser.pictures docs/pictures` (`make pictures`).

The same installation as in the tests, but with names that are not hostile; 1280 wide, in few colours, so that each is
small.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from browser.fake import Store
from browser.made import schedule, stamp
from browser.serve import Served
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from pipeline.server.access import SESSION_COOKIE, Role

HEIGHT = 720
COLOURS = 192
MOST_BYTES = 100_000
TEXTS = (
    "quarterly close",
    "mailbox is full",
    "retry after the vendor's window",
    "550 no such user",
    "see ticket 4711",
    "from the import of May",
)


def main(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    served = Served(store := Store(TEXTS)).start()
    purge = {"id": "p1", "by": "ana", "at": stamp(store.now), "before": None, "waiting": 120, "left": 34}
    store.purges["mail"] = purge
    try:
        with sync_playwright() as playwright:
            program = os.environ.get("DUELINE_CHROMIUM") or shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            context = browser.new_context(viewport={"width": 1280, "height": HEIGHT}, color_scheme="light")
            cookie = served.cookie(served.tokens[Role.ADMIN])
            context.add_cookies([{"name": SESSION_COOKIE, "value": cookie, "url": served.url}])
            page = context.new_page()
            for name, address, act in _wanted(served.store):
                page.goto(f"{served.url}/console/{address}")
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(700)
                act(page)
                _keep(page.screenshot(), place / f"{name}.png")
            browser.close()
    finally:
        served.stop()


def _wanted(store: Store) -> list[tuple[str, str, Callable[[Page], None]]]:
    dead = next(view["id"] for view in store.jobs.values() if view["status"] == "dead")

    def nothing(page: Page) -> None: ...

    def dry_run(page: Page) -> None:
        page.get_by_role("button", name="Replay a window").click()
        page.get_by_label("From (inclusive)").fill("2026-11-30T02:00:00Z")
        page.get_by_label("To (exclusive)").fill("2026-11-30T03:30:00Z")
        page.get_by_label("Limit per second").fill("5")
        page.get_by_role("button", name="Dry run").click()
        page.get_by_text("would run again").wait_for()

    def conflict(page: Page) -> None:
        page.get_by_label("Cron expression").fill("30 3 * * *")
        spec = {
            **store.schedules["daily-report"]["spec"],
            "cron": "0 4 * * *",
            "note": "after the bank's batch",
        }
        store.schedules["daily-report"] = schedule(store, "daily-report", spec, 1)
        page.get_by_role("button", name="Save changes").click()
        page.get_by_text("Stored now").first.wait_for()
        page.get_by_text("It was not saved.").scroll_into_view_if_needed()
        page.wait_for_timeout(400)
        page.evaluate("scrollTo(0, document.body.scrollHeight)")

    def completed(page: Page) -> None:
        search = page.get_by_role("combobox")
        search.focus()
        search.fill("status:dead,retrying due>-1d handler:")
        page.get_by_role("option").first.wait_for()
        page.keyboard.press("ArrowDown")

    def dark(page: Page) -> None:
        page.emulate_media(color_scheme="dark")
        page.wait_for_timeout(200)

    return [
        ("now", "", nothing),
        ("crontab", "crontab", nothing),
        ("schedule", "schedule?id=daily-report", nothing),
        ("schedule-edit", "schedule/edit?id=daily-report", nothing),
        ("schedule-conflict", "schedule/edit?id=daily-report", conflict),
        ("buckets", "buckets", nothing),
        ("jobs", "jobs?q=key%3Ainvoice_*+due%3C%3Dnow", nothing),
        ("jobs-completion", "jobs", completed),
        ("job", f"job?id={dead}", nothing),
        ("dead", "dead", nothing),
        ("fleet", "fleet", nothing),
        ("queues", "queues", nothing),
        ("activity", "activity", nothing),
        ("replay-dry-run", "replays", dry_run),
        ("now-dark", "", dark),
    ]


def _keep(picture: bytes, file: Path) -> None:
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    size = file.stat().st_size
    assert size < MOST_BYTES, f"{file} has {size:,} bytes"
    print(f"{file} {size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
