"""The pages, one a file, and where each is."""

from pipeline.server.console.pages.activity import activity
from pipeline.server.console.pages.buckets import buckets
from pipeline.server.console.pages.crontab import crontab
from pipeline.server.console.pages.dead import dead
from pipeline.server.console.pages.fleet import fleet
from pipeline.server.console.pages.job import job
from pipeline.server.console.pages.job_form import job_form
from pipeline.server.console.pages.jobs import jobs
from pipeline.server.console.pages.now import now
from pipeline.server.console.pages.queues import queues
from pipeline.server.console.pages.replays import replay, replays
from pipeline.server.console.pages.schedule import schedule
from pipeline.server.console.pages.schedule_form import schedule_form
from pipeline.server.console.pages.tokens import tokens

PAGES = {
    "/": now,
    "/crontab": crontab,
    "/schedule": schedule,
    "/schedule/edit": schedule_form,
    "/buckets": buckets,
    "/jobs": jobs,
    "/job": job,
    "/job/new": job_form,
    "/dead": dead,
    "/fleet": fleet,
    "/queues": queues,
    "/replays": replays,
    "/replay": replay,
    "/activity": activity,
    "/tokens": tokens,
}
