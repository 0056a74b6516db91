"""The verbs of a client over HTTP, for places that cannot reach Kafka: asked of a `dueline server`.

What is wrong with a request is told before anything is sent, in the words of the client over Kafka (`request`). What
the server says is given back as that client would: docs/http-client.md tells where the two differ.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self

from pipeline.client.commands import NOT_FOUND, JobChange
from pipeline.client.http_bulk import schedule_all
from pipeline.client.http_calls import Calls, NotDone, View, segment, taken_apart
from pipeline.client.http_json import due_json, instant, job_json, waited
from pipeline.client.request import anywhere, check
from pipeline.config import Settings
from pipeline.core.errors import NotFound, StoreUnreachable
from pipeline.core.handler import Duration
from pipeline.core.ids import keyed_id
from pipeline.core.job import Failure, JobStatus, Run
from pipeline.core.jobref import JobRef
from pipeline.core.sight import Sight

SERVER_S = 5.0
"""What a server may need itself, beside the time-out of its store."""
JOB = (
    "id", "handler", "status", "due_at", "created_at", "ended_at", "key", "queue", "labels", "schedule", "occurrence",
    "serial", "failures", "skipped", "reason", "waits_behind", "kept", "payload", "result", "runs",
)  # fmt: skip
ROW = (
    "id", "handler", "status", "due_at", "queue", "key", "run", "failures", "labels", "schedule", "ended_at", "error",
)  # fmt: skip
WHY = ("id", "status", "waits_for", "sentence")
"""What the commands show of a job; a server tells more."""
ADDED = ("recent", "upcoming", "etag")
"""What it adds to a schedule."""
PAGE = 200


class Http:
    """A `Transport`. Asks as the settings say; what is asynchronous waits in a thread."""

    def __init__(self, settings: Settings, *, patience_s: float | None = None) -> None:
        """`patience_s`: how long an answer may take."""
        assert settings.url is not None
        self._settings = settings
        patience = settings.store_timeout_ms / 1000 + SERVER_S if patience_s is None else patience_s
        self.calls = Calls(settings.url, settings.token, patience_s=patience)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def schedule(self, request: Mapping[str, Any]) -> JobRef:
        check(request, self._settings)
        wait = waited(request.get("wait"))
        body = job_json(request, self._settings.queue)
        try:
            view = self.calls.ask("POST", "/jobs", body=body, query=wait.query, wait_ms=wait.ms)
        except NotDone as error:
            if error.outcome != "rejected":
                raise
            return self._holder(request["key"])
        return JobRef(view.word("id"), view.word("status"), instant(view["due_at"]))

    def _holder(self, key: str) -> JobRef:
        """The job that holds a key, and was not to be touched."""
        view = self.get(keyed_id(key))
        return JobRef(view["id"], "rejected", instant(view["due_at"]))

    async def aschedule(self, request: Mapping[str, Any]) -> JobRef:
        return await asyncio.to_thread(self.schedule, request)

    def schedule_many(self, jobs: Iterable[Mapping[str, Any]]) -> Iterator[JobRef]:
        return schedule_all(self.calls, jobs, self._settings)

    def change(self, verb: str, job_id: str, wait: Duration, **options: Any) -> JobChange:
        path = f"/jobs/{segment(job_id)}"
        match verb:
            case "cancel":
                return self._changed("POST", f"{path}/cancel", job_id, wait, repeatable=True)
            case "reschedule":
                return self._changed("POST", f"{path}/reschedule", job_id, wait, body=due_json(**options))
            case "update":
                anywhere(self._settings).payload(options["payload"])
                return self._changed("PATCH", path, job_id, wait, body=options)
            case _:
                again = {"Idempotency-Key": str(uuid.uuid4())}
                return self._changed("POST", f"{path}/{verb}", job_id, wait, headers=again, repeatable=True)

    async def achange(self, verb: str, job_id: str, wait: Duration, **options: Any) -> JobChange:
        return await asyncio.to_thread(self.change, verb, job_id, wait, **options)

    def stop(self, job_id: str, wait: Duration) -> JobChange:
        path = f"/jobs/{segment(job_id)}/cancel"
        return self._changed("POST", path, job_id, wait, body={"stop": True}, repeatable=True)

    async def astop(self, job_id: str, wait: Duration) -> JobChange:
        return await asyncio.to_thread(self.stop, job_id, wait)

    def _changed(self, method: str, path: str, job_id: str, wait: Duration, **more: Any) -> JobChange:
        patience = waited(wait)
        try:
            view = self.calls.ask(method, path, query=patience.query, wait_ms=patience.ms, **more)
        except NotFound:
            return JobChange(id=job_id, outcome=NOT_FOUND)
        except NotDone as error:
            return JobChange(id=job_id, outcome=error.outcome)
        due_at, run = view.get("due_at"), view.get("run")
        return JobChange(
            id=view.word("id"),
            outcome=view.word("outcome"),
            due_at=None if due_at is None else instant(due_at),
            run=run,
        )

    # -- reading ------------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> dict[str, Any]:
        view = self.calls.ask("GET", f"/jobs/{segment(job_id)}", repeatable=True)
        view.word("id"), view.word("status")
        return {name: view[name] for name in JOB}

    def why(self, job_id: str) -> dict[str, Any]:
        """What it waits for, as `dueline job why` shows it. NotFound."""
        view = self.calls.ask("GET", f"/jobs/{segment(job_id)}/why", repeatable=True)
        return {name: view[name] for name in WHY}

    def jobs(self, limit: int | None = None, **query: Any) -> Iterator[dict[str, Any]]:
        """Rows as `dueline job list` shows them, by due time; `query` as of the API."""
        rows = self.pages("/jobs", query | {"limit": min(limit or PAGE, PAGE)})
        return ({name: row[name] for name in ROW} for row in islice(rows, limit))

    def pages(self, path: str, query: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The rows of all pages."""
        asked: dict[str, Any] = {"limit": PAGE, **(query or {})}
        while True:
            page = self.calls.ask("GET", path, query=asked, repeatable=True)
            with taken_apart():
                rows, cursor = [View(row) for row in page["items"]], page["cursor"]
            if cursor is not None and cursor == asked.get("cursor"):
                raise StoreUnreachable(f"the server at {self.calls.url} answers the same page without end")
            yield from rows
            if cursor is None:
                return
            asked["cursor"] = cursor

    def schedule_view(self, schedule_id: str) -> dict[str, Any]:
        """As `dueline cron describe` shows it. NotFound."""
        return _without_added(self.calls.ask("GET", f"/schedules/{segment(schedule_id)}", repeatable=True))

    def schedule_views(self, **wanted: str | None) -> list[dict[str, Any]]:
        """As `dueline cron list` shows them; `wanted` as of the API."""
        query = {name: value for name, value in wanted.items() if value is not None}
        return [_without_added(row) for row in self.pages("/schedules", query)]

    def live_handlers(self) -> frozenset[str]:
        fleet = self.calls.ask("GET", "/fleet", repeatable=True)
        with taken_apart():
            return frozenset(str(name) for process in fleet["processes"] for name in process["handlers"])

    @contextmanager
    def reading(self) -> Iterator[Self]:
        yield self

    def watch(self, job_id: str) -> Watch:
        return Watch(self, job_id)

    # -- life ---------------------------------------------------------------------------------------------------

    def flush(self, timeout_ms: int) -> None:
        """Nothing is in flight: every verb waits for its answer."""

    def close(self, timeout_ms: int) -> None:
        self.calls.close()


def _without_added(view: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in view.items() if name not in ADDED}


class Watch:
    """A `JobWatch`: each look is a question."""

    def __init__(self, http: Http, job_id: str) -> None:
        self._http = http
        self._job_id = job_id

    def look(self) -> Sight | None:
        try:
            view = self._http.get(self._job_id)
        except NotFound:
            return None
        with taken_apart():
            last = view["runs"][-1:]
            number = max((run["run"] for run in last), default=0)
            errors = [e["error"] for run in last for e in run["attempts"][-1:] if e["error"] is not None]
            failure = Failure(**errors[0]) if errors else None
            return Sight(JobStatus(view["status"]), number, view["result"], failure)

    def run(self) -> Run | None:
        """A server stops runs itself."""
        return None
