"""`dueline era`: the leading part of every token, begun anew when a group lost its generations (DESIGN §7)."""

from __future__ import annotations

from typing import Any

import click

from pipeline import tell_dev_store
from pipeline.adapters import kafka_admin
from pipeline.cli.output import emit, note
from pipeline.cli.store import following
from pipeline.config import load_settings
from pipeline.core.errors import Refused
from pipeline.heartbeat import in_words


@click.group("era")
def era() -> None:
    """The era of an installation, which stands before the generation in every token."""


@era.command()
@click.option("--yes", is_flag=True, help="Also while processes are running.")
def bump(yes: bool) -> None:
    """Begin the next era, and forget which generations owned the partitions.

    For when a consumer group was deleted, expired or restored, so that its generations began anew: dispatchers
    refuse then, naming this command. Tokens of the new era are larger than all before. Stop the dispatchers and
    workers first: a process keeps the era it started with until it is started again.
    """
    settings = load_settings()
    tell_dev_store(settings)
    live = _live()
    if live and not yes:
        raise Refused(
            f"nothing was changed, there runs {live}: stop them first, or bump with --yes and restart them"
        )
    done = kafka_admin.bump_era(settings)
    data = {"old": done.old, "new": done.new, "guards_removed": done.guards}
    emit(data, _text)
    note(f"restart all workers and dispatchers: one that runs has era {done.old} until then")


def _live() -> str:
    """The processes whose heartbeats are fresh, in words; empty if there is none."""
    with following() as store:
        return in_words(store.follower.processes(store.parts.clock.now()))


def _text(data: Any) -> str:
    return f"era {data['old']} is over, era {data['new']} has begun; {data['guards_removed']} guards removed"
