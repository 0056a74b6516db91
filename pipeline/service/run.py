"""What every process of the product stands on, and a dispatcher put together from settings (a worker: `crew`)."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from pipeline import __version__
from pipeline.adapters.kafka_admin import TopicAdmin, load_layout, topic_admin
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.adapters.kafka_meta import GuardReader
from pipeline.adapters.kafka_settings import is_fenced
from pipeline.adapters.rocks_index import RocksIndex
from pipeline.adapters.store_clock import StoreClock, kafka_clock
from pipeline.config import Settings, unknown_rates, unknown_variables
from pipeline.core.errors import DuelineError
from pipeline.core.identity import Identity
from pipeline.core.layout import Layout
from pipeline.core.site import Site
from pipeline.core.topics import DELETE_RETENTION_MS
from pipeline.heartbeat import Pulse, read_fleet
from pipeline.ports import Events, GroupLog, RebalanceListener
from pipeline.service.build import Build, chosen_build
from pipeline.service.log import LogEvents
from pipeline.service.loop import Stop, rebuilding, step_until
from pipeline.service.observe import Observer, learn_era, observing
from pipeline.service.person import spoken
from pipeline.service.slots import Slot, claimed_slot, renamed

COPY_S = 60.0
"""Fenced again within this time: not an accident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """What any role of this process needs: the store's facts, and who we are."""

    settings: Settings
    slot: Slot
    identity: Identity
    layout: Layout
    fleet_partitions: int
    admin: TopicAdmin
    sessions: dict[str, int] = field(default_factory=dict)
    appender: KafkaAppender
    clock: StoreClock
    events: Events
    observer: Observer
    build: Build

    def pulse(self) -> Pulse:
        return Pulse(
            appender=self.appender,
            fleet=self.settings.names.fleet,
            partitions=self.fleet_partitions,
            process=self.identity.process,
        )

    def session_of(self, group: str) -> int:
        """How long a silent member of the group counts as alive, ms; the store is asked once."""
        if group not in self.sessions:
            wanted = self.settings.session_timeout_ms
            if self.settings.group_protocol == "classic":
                self.sessions[group] = wanted or self.admin.lowest_session_timeout()
            else:
                self.sessions[group] = self.admin.consumer_session(group, wanted)
        return self.sessions[group]

    def open_log(
        self, role: str, topic: str, group: str, n: int, session_ms: int
    ) -> Callable[[RebalanceListener], GroupLog]:
        names, ring = self.settings.names, self.settings.producers
        ids = [
            names.transactional_id(role, self.slot.instance, self.slot.number, n * ring + turn)
            for turn in range(ring)
        ]
        return lambda listener: self.build.log(
            self.settings.require_bootstrap(),
            topic=topic,
            group=group,
            listener=listener,
            transactional_ids=ids,
            session_timeout_ms=session_ms,
            client=self.settings.kafka,
            protocol=self.settings.group_protocol,
            producer=partial(self.build.producer, checkpoint=self.build.checkpoint),
        )


@contextmanager
def plant(settings: Settings, role: str, slot_number: int | None, stop: Stop) -> Iterator[Plant]:
    """Claim a slot, look at the store, start the clock. Raises Refused, StoreUnreachable, InvalidInput."""
    os.umask(0o077)
    build = chosen_build(os.environ)
    with ExitStack() as stack:
        slot = stack.enter_context(claimed_slot(settings.state_dir, role, slot_number))
        observer = stack.enter_context(
            observing(settings, role, slot.number, stop, spoken(LogEvents(role, slot.number)))
        )
        events = observer.metrics
        layout = load_layout(settings)
        for warning in (*unknown_variables(), *unknown_rates(settings, layout.queues)):
            events.on("setting_ignored", reason=warning)
        admin = topic_admin(settings)
        # A handler waits for its started record to be durable; heartbeats and takeover records can wait.
        linger_ms = 2 if role == "worker" else 5
        appender = KafkaAppender(settings.require_bootstrap(), settings.kafka, linger_ms=linger_ms)
        stack.callback(appender.close)
        clock = kafka_clock(settings.require_bootstrap(), settings.names.fleet, settings.kafka, events)
        stack.callback(clock.close)
        started_at = clock.now()
        yield Plant(
            settings=settings,
            slot=slot,
            identity=Identity(
                process=slot.process,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=__version__,
                started_at=started_at,
            ),
            layout=layout,
            fleet_partitions=admin.partitions(settings.names.fleet),
            admin=admin,
            appender=appender,
            clock=clock,
            events=events,
            observer=observer.of_clock(clock),
            build=build,
        )


class Tenant:
    """Who this process is in the store, as it is now: somebody else once it turns out that another process has the
    same transactional ids, which are those of a copied state directory (DESIGN §5.2). Two processes would end each
    other's transactions for ever."""

    def __init__(self, plant: Plant) -> None:
        self.plant = plant
        self._fenced_at = -COPY_S

    def dismissed(self, error: DuelineError) -> None:
        """The clients died of this. Fenced twice within a minute: a new instance id."""
        if not is_fenced(error):
            return
        now = time.monotonic()
        if now - self._fenced_at >= COPY_S:
            self._fenced_at = now
            return
        self._fenced_at = -COPY_S
        old, slot = self.plant.slot, renamed(self.plant.slot, self.plant.settings.state_dir)
        self.plant = replace(self.plant, slot=slot)
        self.plant.events.on(
            "instance_renamed",
            process=self.plant.identity.process,
            old=old.instance,
            new=slot.instance,
            slot=slot.number,
            reason=f"fenced twice within {COPY_S:.0f} s: another process uses our transactional ids, so the state"
            f" directory {self.plant.settings.state_dir} was copied, or is shared by hosts",
        )


def run_dispatcher(settings: Settings, *, slot: int | None = None) -> None:
    """Own partitions of `jobs` and fire what is due, until SIGTERM or SIGINT."""
    stop = Stop()
    stop.listen()
    with plant(settings, "dispatcher", slot, stop) as first:
        learn_era(settings, first.observer.metrics)
        tenant = Tenant(first)
        rebuilding(lambda: _dispatch(tenant.plant, stop), stop, first.events, tenant.dismissed)


def calm_collector() -> None:
    """What was made at the start lives on, and a batch is thousands of small objects without a cycle among them:
    looking for cycles after every 700 of them took a tenth of the time, and in a worker a sixth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 10, 20)


def _dispatch(plant: Plant, stop: Stop) -> None:
    names = plant.settings.names
    calm_collector()
    group = names.dispatcher_group
    with ExitStack() as stack:
        guards = GuardReader(plant.settings.client_config(), names, group)
        stack.callback(guards.close)
        reader = KafkaReader(plant.settings.require_bootstrap(), plant.settings.kafka)
        stack.callback(reader.close)
        index = RocksIndex(plant.slot.path / "index")
        stack.callback(index.close)
        site = Site(
            names=names,
            layout=plant.layout,
            # Anew each time the clients are built: the topic may have been deleted and made again meanwhile (H13).
            cluster_id=plant.admin.cluster_id(),
            topic_id=plant.admin.topic_id(names.jobs),
            stale_after_ms=DELETE_RETENTION_MS // 2,
            read_layout=lambda: load_layout(plant.settings),
            read_guards=guards,
            read_standing=guards.standing,
            rates=plant.settings.rates,
        )
        stack.enter_context(plant.observer.probing(plant.settings, lambda: site.layout.queues))
        open_log = plant.open_log("dispatcher", names.jobs, group, 0, plant.session_of(group))
        dispatcher = plant.build.dispatcher(
            open_log=plant.observer.watching("", open_log, index),
            index=index,
            site=site,
            clock=plant.clock,
            random=Random(),
            identity=plant.identity,
            pulse=plant.pulse(),
            events=plant.events,
            rates=plant.settings.rates,
            fleet=lambda since: read_fleet(reader, names.fleet, since),
            session_ms=plant.session_of(group),
            checkpoint=plant.build.checkpoint,
        )
        stack.callback(dispatcher.close)
        plant.events.on("started", process=plant.identity.process, slot=plant.slot.number)
        step_until(plant.observer.around(dispatcher.step), lambda: stop.requested)
    plant.events.on("stopped", process=plant.identity.process)
