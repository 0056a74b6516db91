"""The console of a real server in a real browser, over a broker that stands still and a server that is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser.conftest import launched
from browser.test_flows import dialog, press, said
from integration.fleet import Fleet, fleet
from integration.test_server import SHOP, server
from playwright.sync_api import Locator, Page, expect
from ports import free_port

from pipeline.dev.broker import EmbeddedBroker

PATIENCE_MS = 45_000


@contextmanager
def console(shop: Fleet, page: Page, port: int) -> Iterator[int]:
    """A server on this port, with its console open once it is live. Its process id."""
    with server(shop, "one", "--port", str(port)) as (_, process):
        if page.url == "about:blank":
            page.goto(f"http://127.0.0.1:{port}/console/queues")
        expect(page.locator(".fresh")).to_have_text("Live", timeout=PATIENCE_MS)
        yield process.pid


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_open_page_says_who_is_gone_and_comes_back_by_itself(prefix: str, tmp_path: Path) -> None:
    with (
        EmbeddedBroker(tmp_path / "store") as store,
        fleet(store.bootstrap, prefix, tmp_path, SHOP) as shop,
        launched() as chromium,
    ):
        shop.dispatcher()
        shop.worker()
        port, page = free_port(), chromium.new_page()
        with console(shop, page, port) as server_pid:
            _purge_what_waits(shop, page)
            _the_broker_stands_still(store, page)
            form = _typed(chromium.new_page(), port)
            before = form.evaluate("clientId")
            os.kill(server_pid, signal.SIGKILL)
            gone = page.get_by_role("alert").filter(has_text="The server is not answering.")
            expect(gone).to_be_visible(timeout=PATIENCE_MS)
            expect(_row(page)).to_be_visible()
        with console(shop, page, port):
            expect(gone).to_be_hidden()
            expect(_row(page)).to_contain_text("paused")
            form.wait_for_function("before => window.clientId !== before", arg=before, timeout=PATIENCE_MS)
            expect(form.get_by_label("Every")).to_have_value("90s")
            expect(form.get_by_role("heading", name="The next 10")).to_be_visible(timeout=PATIENCE_MS)


def _typed(form: Page, port: int) -> Page:
    form.goto(f"http://127.0.0.1:{port}/console/schedule/edit")
    form.get_by_label("Every").fill("90s")
    expect(form.get_by_role("heading", name="The next 10")).to_be_visible(timeout=PATIENCE_MS)
    return form


def _row(page: Page) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="default", exact=True))


def _purge_what_waits(shop: Fleet, page: Page) -> None:
    """Live updates are paused, so what is shown was waited for: the read model had heard of each change."""
    press(page, "Pause updates")
    press(page, "Pause default")
    press(dialog(page), "Pause")
    expect(_row(page)).to_contain_text("by local", timeout=PATIENCE_MS)
    deadline = time.monotonic() + 60
    while '"queue_paused"' not in shop.log():  # or the worker still starts them
        assert time.monotonic() < deadline, "the worker did not hear of the pause"
        page.wait_for_timeout(100)
    for _ in range(3):
        shop.client.schedule("ok", {}, in_="0s")
    while (waiting := _waiting(page)) != 3:
        assert time.monotonic() < deadline, waiting
        page.wait_for_timeout(100)
    press(page, "Purge default")
    heading = dialog(page).get_by_role("heading", name="Purge 3 runs from default?")
    expect(heading).to_be_visible(timeout=PATIENCE_MS)
    dialog(page).get_by_label("Type 3 to confirm").fill("3")
    press(dialog(page), "Purge")
    said(page, "3 runs in default will end as cancelled.")
    expect(_row(page)).to_contain_text("purge by local")
    press(page, "Resume updates")
    expect(_row(page)).not_to_contain_text("purg", timeout=PATIENCE_MS)
    page.goto(page.url.replace("queues", "jobs?q=status%3Acancelled"))
    expect(page.locator("table.t tbody tr")).to_have_count(3, timeout=PATIENCE_MS)
    page.goto(page.url.replace("jobs?q=status%3Acancelled", "queues"))
    expect(page.locator(".fresh")).to_have_text("Live", timeout=PATIENCE_MS)


def _waiting(page: Page) -> int:
    """Runs in the queue, as the server knows; the jobs may be on their way yet."""
    path = "/api/v1/jobs/count?status=queued&queue=default"
    return int(page.request.get(page.url.replace("/console/queues", path)).json()["count"])


def _the_broker_stands_still(store: EmbeddedBroker, page: Page) -> None:
    """It keeps its connections: nothing but silence tells."""
    store.process.send_signal(signal.SIGSTOP)
    try:
        expect(page.get_by_text("This page may be out of date.")).to_be_visible(timeout=PATIENCE_MS)
        expect(page.locator(".fresh")).to_have_text("Not updating")
        expect(_row(page)).to_be_visible()
    finally:
        store.process.send_signal(signal.SIGCONT)
    expect(page.locator(".fresh")).to_have_text("Live", timeout=PATIENCE_MS)
