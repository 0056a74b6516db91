"""The application: API, probes, metrics and the document, in front of the FastAPI app on which the console mounts its
pages.

In front, since a job need not pass what pages are served with: half the time of a request went there.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from pipeline import __version__
from pipeline.core.errors import DuelineError
from pipeline.server import openapi, reference
from pipeline.server.access import Role
from pipeline.server.acting import UNREADY_MS
from pipeline.server.api import ENDPOINTS, PREFIX
from pipeline.server.endpoint import Call, Endpoint, Handle, Services
from pipeline.server.guard import Guard
from pipeline.server.metrics import ServerMetrics
from pipeline.server.pace import Pace
from pipeline.server.problems import FAILED, UNKNOWN_PATH, problem
from pipeline.server.routes import SEE, Routes
from pipeline.server.serving import Serving

NOTHING_HERE = """<!doctype html>
<html lang="en-GB"><title>Nothing here - Dueline</title>
<p>There is nothing at this address. Here are <a href="/console/">the console</a> and
<a href="/api/v1/docs">what the API takes</a>.</p></html>
"""


def create_app() -> FastAPI:
    """What pages are mounted on."""
    return FastAPI(
        title="Dueline",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        exception_handlers={Exception: _failed, HTTPStatus.NOT_FOUND: _unknown},
        redirect_slashes=False,
    )


def front_of(app: FastAPI, services: Services, serving: Serving, metrics: ServerMetrics) -> ASGIApp:
    """What is served: the API, and behind it `app`."""
    own = [replace(endpoint, path=f"{PREFIX}{endpoint.path}") for endpoint in ENDPOINTS]
    endpoints = (*own, *_probes(services, metrics))
    prefixes = ("/api", "/healthz", "/readyz", "/metrics")
    routes = Routes(app, serving=serving, endpoints=endpoints, prefixes=prefixes)
    return Guard(Pace(routes), open=lambda: services.access.open)


async def _failed(_request: Request, _error: Exception) -> Response:
    """Of a page: whatever it is, who asked learns no more than that."""
    return problem(FAILED, "the log of the server has the details")


async def _unknown(request: Request, _error: Exception) -> Response:
    """Of a path that is neither the API's nor the console's: people are shown the way."""
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(NOTHING_HERE, HTTPStatus.NOT_FOUND)
    return problem(UNKNOWN_PATH, SEE)


# -- probes --------------------------------------------------------------------------------------------------


def _probes(services: Services, metrics: ServerMetrics) -> tuple[Endpoint, ...]:
    async def healthz(_: Call) -> Response:
        """Whether this process is alive: it answers."""
        return PlainTextResponse("ok\n")

    async def readyz(_: Call) -> Response:
        found = unready(services)
        return PlainTextResponse("ok\n" if found is None else f"{found}\n", 200 if found is None else 503)

    async def scrape(call: Call) -> Response:
        metrics.streams.set(services.streams.open)
        metrics.behind.set(services.questions.freshness().age_ms / 1000)
        encode, media_type = choose_encoder(call.request.headers.get("accept", ""))
        return Response(encode(metrics.registry), media_type=media_type)

    async def document(_: Call) -> Response:
        return Response(openapi.released(), media_type="application/json")

    async def docs(call: Call) -> Response:
        return HTMLResponse(reference.page(str(call.request.base_url).rstrip("/")))

    def probe(path: str, name: str, role: Role | None, handle: Handle, **more: Any) -> Endpoint:
        return Endpoint(
            method="GET",
            path=path,
            name=name,
            role=role,
            handle=handle,
            tag="probes",
            summary=name,
            **more,
        )

    return (
        probe("/healthz", "healthz", None, healthz),
        probe("/readyz", "readyz", None, readyz),
        probe("/metrics", "metrics", Role.VIEWER, scrape),
        probe(f"{PREFIX}/openapi.json", "openapi", None, document),
        probe(f"{PREFIX}/docs", "docs", None, docs, headers=reference.HEADERS),
    )


def unready(services: Services) -> str | None:
    """Why this server should not be asked; None if it may."""
    if services.stopping():
        return "stopping"
    freshness = services.questions.freshness()
    if freshness.problem is not None:
        return freshness.problem
    if services.store.problem is not None:  # its words are for who waited in vain
        return "the store does not answer"
    if not freshness.ready:
        return f"catching up: {freshness.behind} records behind"
    if freshness.age_ms > UNREADY_MS:
        return f"behind by {freshness.age_ms} ms"
    return _without_owner(services)


def _without_owner(services: Services) -> str | None:
    try:
        fleet = services.questions.fleet()
    except DuelineError as error:
        return str(error)
    jobs = [each for each in fleet["partitions"] if each["topic"] == services.names.jobs]
    idle = [each["partition"] for each in jobs if each["owner"] is None]
    if idle or not jobs:
        shown = ", ".join(map(str, idle[:5])) or "any"
        return f"no dispatcher owns partition {shown}"
    return None
