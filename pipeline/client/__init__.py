"""The client: `Dueline`. Nothing is loaded before it is used, Avro and Kafka not before it connects."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from pipeline.client.app import Dueline
    from pipeline.client.commands import JobChange
    from pipeline.client.parts import JobFinder, Parts
    from pipeline.client.request import JobOptions
    from pipeline.core.jobref import JobRef
    from pipeline.ports import Feed

__all__ = ["Dueline", "Feed", "JobChange", "JobFinder", "JobOptions", "JobRef", "Parts"]

_MODULES = {
    "Dueline": "pipeline.client.app",
    "Feed": "pipeline.ports",
    "JobChange": "pipeline.client.commands",
    "JobFinder": "pipeline.client.parts",
    "JobOptions": "pipeline.client.request",
    "JobRef": "pipeline.core.jobref",
    "Parts": "pipeline.client.parts",
}

if not TYPE_CHECKING:  # a type checker sees the imports above

    def __getattr__(name: str) -> "Any":
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)
