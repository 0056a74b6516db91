"""Every page, with what it is to show."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from browser.fake import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """`shows`: a text that is there once it has drawn; `live`: it asks again."""

    name: str
    address: str
    title: str
    shows: str
    live: bool = True


def places(store: Store) -> list[Place]:
    dead = next(view for view in store.jobs.values() if view["status"] == "dead")
    pending = next(view for view in store.jobs.values() if view["status"] == "pending")
    replay = store.replays[0]["id"]
    return [
        Place(name="now", address="", title="Now", shows="1,048,213"),
        Place(name="crontab", address="crontab", title="Crontab", shows="daily-report"),
        Place(
            name="schedule",
            address="schedule?id=daily-report",
            title="daily-report",
            shows="every day at 02:30 Berlin",
        ),
        Place(
            name="schedule-edit",
            address="schedule/edit?id=daily-report",
            title="Edit daily-report",
            shows="The next 10",
            live=False,
        ),
        Place(
            name="schedule-new",
            address="schedule/edit",
            title="New schedule",
            shows="Cron expression",
            live=False,
        ),
        Place(name="buckets", address="buckets", title="Buckets", shows="Buckets with trouble"),
        Place(
            name="buckets-hours", address="buckets?scale=days", title="Buckets", shows="Buckets with trouble"
        ),
        Place(name="jobs", address="jobs", title="Jobs", shows="Next page"),
        Place(name="jobs-none", address="jobs?q=handler%3Anothing", title="Jobs", shows="No jobs match"),
        Place(
            name="jobs-bad-search",
            address="jobs?q=stat%3Adead",
            title="Jobs",
            shows="there is no filter 'stat'",
            live=False,
        ),
        Place(
            name="job-dead",
            address=f"job?{urlencode({'id': dead['id']})}",
            title=dead["id"],
            shows="Runs and attempts",
        ),
        Place(
            name="job-pending",
            address=f"job?{urlencode({'id': pending['id']})}",
            title=pending["id"],
            shows="no live worker",
        ),
        Place(name="job-new", address="job/new", title="New job", shows="passed to the handler", live=False),
        Place(name="tokens", address="tokens", title="Tokens", shows="ana-viewer"),
        Place(name="dead-letters", address="dead", title="Dead letters", shows="max attempts"),
        Place(name="fleet", address="fleet", title="Fleet", shows="Runs in flight"),
        Place(name="queues", address="queues", title="Queues", shows="webhooks"),
        Place(name="activity", address="activity", title="Activity", shows="schedule.pause"),
        Place(name="replays", address="replays", title="Replays", shows="400 of 1,200"),
        Place(name="replay", address=f"replay?id={replay}", title="Replay", shows="400 of 1,200"),
        Place(
            name="nowhere",
            address="xyz",
            title="No such page",
            shows="There is nothing at this address",
            live=False,
        ),
    ]


NAMES = [place.name for place in places(Store())]
