"""The console: pages for operators on the application of the API (docs/console.md).

`mount_console` is all that the outside needs. Pages read from `Questions`, change through `Actions`, and ask `Access`
who is there; they hold no state of their own but what is on the screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

    from pipeline.readmodel.questions import Questions
    from pipeline.server.access import Access
    from pipeline.server.actions import Actions


def mount_console(
    app: FastAPI, *, questions: Questions, actions: Actions, access: Access, name: str = ""
) -> None:
    """Serve the console under `/console/`. `name` of the installation is shown on each page.

    NiceGUI keeps one application for each process: mounted again, only the last one's pages are served.
    """
    from pipeline.server.console.mount import mount  # NiceGUI takes a second to import

    mount(app, questions=questions, actions=actions, access=access, name=name)
