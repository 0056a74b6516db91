"""Where the pages are, with what they show in the address. Pure.

Ids stand in the query and not in the path: a schedule may be called `..`, and a browser would walk up.
"""

from __future__ import annotations

from urllib.parse import urlencode

BASE = "/console"


def to(page: str, **query: object) -> str:
    """`to("jobs", q="status:dead")`: values that are None or empty are left out."""
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return f"{BASE}/{page}" + (f"?{urlencode(given)}" if given else "")


def job(job_id: str) -> str:
    return to("job", id=job_id)


def schedule(schedule_id: str) -> str:
    return to("schedule", id=schedule_id)


def jobs(search: str, **query: str) -> str:
    """An empty search is all jobs, which none is not."""
    return f"{BASE}/jobs?{urlencode({'q': search, **query})}"
