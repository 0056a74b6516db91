"""Helpers that make the effect of a handler happen once, at the resource itself (docs/effects.md)."""

from pipeline.core.effect import headers_of
from pipeline.core.handler import Fenced
from pipeline.sinks.sql import Effect, SqlSink

__all__ = ["Effect", "Fenced", "SqlSink", "headers_of"]
