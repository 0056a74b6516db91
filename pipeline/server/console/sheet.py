"""A page without any script behind it: the sign-in page, and what is shown before anybody is known."""

from __future__ import annotations

import hashlib
from html import escape
from pathlib import Path
from urllib.parse import quote

from pipeline.server.console import links

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 18 18"><g fill="none" stroke="#0b6172" stroke-width="2">'
    '<circle cx="9" cy="9" r="7.5"/><path d="M9 4.5V9l3.2 2" stroke-linecap="round"/></g></svg>'
)
STATIC = Path(__file__).parent / "static"


def asset(name: str) -> str:
    """Its address, by its content: a browser may keep it, and never shows an old one."""
    version = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"{links.BASE}/static/{name}?v={version}"


def sheet(title: str, markup: str, *, refresh_s: int | None = None, script: str = "") -> str:
    """`markup` is ours, with all data in it escaped by `escape`."""
    refresh = "" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s}">'
    return (
        '<!doctype html><html lang="en-GB"><head><meta charset="utf-8">'
        f'<title>{escape(title)} · Dueline</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:image/svg+xml,{quote(ICON)}">'
        f'{refresh}<link rel="stylesheet" href="{asset("console.css")}"><script src="{asset("console.js")}"></script>'
        "<style>body{margin:0}*{box-sizing:border-box}</style></head><body>"
        f'<main class="sign-in"><p class="brand">{ICON}Dueline</p><div class="block"><h1>{escape(title)}</h1>'
        f"{markup}</div></main>{script}</body></html>"
    )
