"""Who changed what, by pages that look at so much at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.core.errors import InvalidInput
from pipeline.readmodel import ReadModel, audit
from pipeline.readmodel.questions import AuditWanted, Page

Settled = Callable[[], ReadModel]


def test_who_changed_what_the_latest_first(store: Any, settled: Settled) -> None:
    for n in range(5):
        detail = {
            "verb": "job.cancel",
            "requested_by": f"who{n % 2}",
            "role": "admin",
            "token": "t",
            "note": "late",
        }
        store.tell(0, f"a{n}", kind="audit", outcome="cancelled", job_id=f"j{n}", detail=detail)
        store.tell(0, f"c{n}", outcome="cancelled", job_id=f"j{n}", detail={"kind": "audit"})
    store.tell(0, "s", kind="audit", outcome="paused", detail={"verb": "schedule.pause", "schedule": "s1"})
    model = settled()
    page = model.audit(AuditWanted())
    assert [(row["verb"], row["job"]) for row in page.rows] == [
        ("schedule.pause", None),
        *(("job.cancel", f"j{n}") for n in (4, 3, 2, 1, 0)),
    ]
    assert (page.cursor, page.scanned) == (None, 11)
    assert page.rows[1] == {
        "at": page.rows[1]["at"], "by": "who0", "role": "admin", "verb": "job.cancel", "outcome": "cancelled",
        "job": "j4", "schedule": None, "detail": {"note": "late"},
    }  # fmt: skip
    assert [row["job"] for row in model.audit(AuditWanted(by="who1")).rows] == ["j3", "j1"]
    assert [row["by"] for row in model.audit(AuditWanted(job="j2")).rows] == ["who0"]
    assert [row["schedule"] for row in model.audit(AuditWanted(schedule="s1")).rows] == ["s1"]
    assert model.audit(AuditWanted(by="nobody")) == Page(rows=[], cursor=None, scanned=11)


def test_changes_come_by_pages_that_look_at_so_much_at_most(
    store: Any, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        store.tell(0, f"a{n}", kind="audit", outcome="x", job_id=f"j{n}", detail={"verb": "v"})
        store.tell(0, f"c{n}", outcome="cancelled")
    model = settled()
    monkeypatch.setattr(audit, "BUDGET", 3)
    jobs, scanned, cursor = [], [], None
    while True:
        page = model.audit(AuditWanted(), limit=2, cursor=cursor)
        jobs.append([row["job"] for row in page.rows])
        scanned.append(page.scanned)
        if (cursor := page.cursor) is None:
            break
    assert jobs == [["j3"], ["j2", "j1"], ["j0"]]
    assert scanned == [3, 3, 2]
    with pytest.raises(InvalidInput, match=r"^cursor"):
        model.audit(AuditWanted(by="x"), cursor=model.audit(AuditWanted(), limit=1).cursor)
    with pytest.raises(InvalidInput, match=r"^limit"):
        model.audit(AuditWanted(), limit=0)
