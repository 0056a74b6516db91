"""The real store as a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.adapters.kafka_admin import load_layout, topic_admin
from pipeline.adapters.kafka_follow import KafkaFollow
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.adapters.kafka_lag import group_progress
from pipeline.adapters.store_clock import kafka_clock
from pipeline.config import Settings
from pipeline.readmodel.source import Connect, Source


def connector(settings: Settings) -> Connect:
    """Reaches the store that the settings name, each time anew."""

    def connect() -> Source:
        bootstrap, names = settings.require_bootstrap(), settings.names
        layout = load_layout(settings)
        admin = topic_admin(settings)
        clock = kafka_clock(bootstrap, names.fleet, settings.kafka)
        reader, lag_reader = (KafkaReader(bootstrap, settings.kafka) for _ in range(2))

        def identities(topics: Sequence[str]) -> Mapping[str, str]:
            return {name: shape.topic_id for name, shape in admin.shapes(topics).items()}

        def close() -> None:
            clock.close()
            reader.close()
            lag_reader.close()

        return Source(
            names=names,
            clock=clock,
            layout=layout,
            reader=reader,
            lag_reader=lag_reader,
            follow=KafkaFollow(bootstrap, settings.kafka),
            identities=identities,
            group_progress=lambda *place: group_progress(bootstrap, settings.kafka, *place),
            close=close,
        )

    return connect
