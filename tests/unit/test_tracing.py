"""Spans of attempts, and their links to where jobs were scheduled."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pipeline import Cancel, Dueline, InvalidInput
from pipeline.testing import recording, run_job
from pipeline.tracing import OpenTelemetry


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


@pytest.fixture
def app(provider: TracerProvider) -> Dueline:
    return Dueline(middleware=[OpenTelemetry(provider)])


def test_an_attempt_is_a_span_that_links_to_where_it_was_scheduled(
    app: Dueline, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    inside: list[Any] = []
    app.job("bill")(lambda ctx: inside.append(trace.get_current_span().get_span_context()))
    tracer = provider.get_tracer("test")
    with recording(app) as recorded, tracer.start_as_current_span("request") as request:
        app.schedule("bill", in_="1h", headers={"own": "1"})
    (job,) = recorded.scheduled
    assert job.headers["own"] == "1"
    assert f"{request.get_span_context().trace_id:032x}" in job.headers["traceparent"]
    run_job(app, "bill", headers=job.headers)
    span = next(span for span in spans.get_finished_spans() if span.name == "bill")
    assert span.parent is None
    assert inside == [span.get_span_context()]
    assert [link.context.span_id for link in span.links] == [request.get_span_context().span_id]
    assert (span.attributes or {})["dueline.attempt"] == 1
    assert span.status.is_unset


def test_what_a_handler_schedules_links_to_its_attempt(app: Dueline, spans: InMemorySpanExporter) -> None:
    async def bill(ctx: Any) -> None:
        await asyncio.sleep(0)
        ctx.schedule("remind", in_="1h")

    app.job("bill")(bill)
    (job,) = run_job(app, "bill").scheduled
    (span,) = spans.get_finished_spans()
    assert f"{span.get_span_context().span_id:016x}" in job.headers["traceparent"]
    assert span.links == ()


@pytest.mark.parametrize(("answer", "failed"), [(ValueError("no"), True), (Cancel("paid"), False)], ids=repr)
def test_a_failure_is_an_error_and_a_verb_that_is_none_is_not(
    app: Dueline, spans: InMemorySpanExporter, answer: Exception, failed: bool
) -> None:
    app.job("h")(lambda ctx: answer if isinstance(answer, Cancel) else (_ for _ in ()).throw(answer))
    run_job(app, "h")
    (span,) = spans.get_finished_spans()
    assert (span.status.status_code is trace.StatusCode.ERROR, len(span.events)) == (failed, failed)


def test_nothing_is_put_on_a_job_outside_of_any_span(app: Dueline) -> None:
    with recording(app) as recorded:
        app.schedule("h", in_=0)
    assert recorded.scheduled[0].headers == {}


def test_its_absence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidInput, match="pip install opentelemetry-sdk"):
        OpenTelemetry()
