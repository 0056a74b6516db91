"""Traces with OpenTelemetry: one span for each attempt, linked to the span in which its job was scheduled.

    app = Dueline(middleware=[OpenTelemetry()])          # pip install opentelemetry-sdk

A job may run years after it was scheduled, so it begins a trace of its own and only links to that span (`traceparent`
of W3C Trace Context in the job's headers).
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InvalidInput
from pipeline.core.handler import Cancel, Snooze
from pipeline.core.middleware import HandlerOutcome

if TYPE_CHECKING:
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.trace import Link, Span, TracerProvider

    from pipeline.core.context import Context

NO_FAILURES = (Snooze, Cancel)
"""Verbs that a handler may answer when all is well."""
_spans: ContextVar[tuple[Span, Token[TraceContext]]] = ContextVar("dueline_span")


class OpenTelemetry:
    """A middleware. InvalidInput if the package opentelemetry-api is not there."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """`provider` None = the global one, at each attempt."""
        try:
            from opentelemetry import propagate, trace
        except ModuleNotFoundError as error:
            raise InvalidInput("middleware", "OpenTelemetry needs `pip install opentelemetry-sdk`") from error
        self._trace, self._propagate, self._provider = trace, propagate, provider

    def before(self, ctx: Context) -> None:
        from opentelemetry.context import attach

        tracer = self._trace.get_tracer("dueline", tracer_provider=self._provider)
        span = tracer.start_span(
            ctx.handler,
            context=self._propagate.extract({}),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=_attributes(ctx),
            links=self._links(ctx),
        )
        _spans.set((span, attach(self._trace.set_span_in_context(span))))

    def after(self, ctx: Context, outcome: HandlerOutcome) -> None:
        from opentelemetry.context import detach

        span, token = _spans.get()
        detach(token)
        given = outcome.error if outcome.error is not None else outcome.value
        if isinstance(given, BaseException) and not isinstance(given, NO_FAILURES):
            span.record_exception(given)
            span.set_status(self._trace.StatusCode.ERROR, type(given).__name__)
        span.end()

    def headers(self) -> dict[str, str]:
        """The current span, for the headers of a job that is being scheduled."""
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier)
        return carrier

    def _links(self, ctx: Context) -> list[Link]:
        there = self._trace.get_current_span(self._propagate.extract(dict(ctx.headers))).get_span_context()
        return [self._trace.Link(there)] if there.is_valid else []


def _attributes(ctx: Context) -> dict[str, Any]:
    """After the conventions for messaging, and our own words."""
    return {
        "messaging.system": "dueline",
        "messaging.operation.type": "process",
        "messaging.destination.name": ctx.queue,
        "messaging.message.id": ctx.job_id,
        "dueline.occurrence_id": ctx.occurrence_id,
        "dueline.run": ctx.run,
        "dueline.attempt": ctx.attempt,
        "dueline.due_at": ctx.due_at.isoformat(),
    }
