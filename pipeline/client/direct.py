"""The verbs of a client over Kafka: a job is a record, a change a command to the owner of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.client import commands, waiting
from pipeline.client.bulk import schedule_all
from pipeline.client.commands import NOT_FOUND, JobChange
from pipeline.client.connection import Connection
from pipeline.core.errors import NotFound
from pipeline.core.handler import Duration
from pipeline.core.jobref import JobRef


class Direct(Connection):
    """A `Transport`."""

    def schedule(self, request: Mapping[str, Any]) -> JobRef:
        if request.get("key") is not None:
            sent = commands.send_create(self, request)
            return commands.created(sent.command, commands.answer_of(self, sent))
        ref, delivery = self.create(request)
        self.wait(delivery)
        return ref

    async def aschedule(self, request: Mapping[str, Any]) -> JobRef:
        if request.get("key") is not None:
            sent = await asyncio.to_thread(commands.send_create, self, request)
            return commands.created(sent.command, await commands.answer_of_async(self, sent))
        ref, delivery = await asyncio.to_thread(self.create, request)
        await self.wait_async(delivery)
        return ref

    def schedule_many(self, jobs: Iterable[Mapping[str, Any]]) -> Iterator[JobRef]:
        return schedule_all(self, jobs)

    def change(self, verb: str, job_id: str, wait: Duration, **options: Any) -> JobChange:
        try:
            sent = commands.ask(self, verb, job_id, wait, **options)
        except NotFound:  # of a requeue, which needs the run
            return JobChange(id=job_id, outcome=NOT_FOUND)
        return commands.meaning(self, job_id, commands.answer_of(self, sent))

    async def achange(self, verb: str, job_id: str, wait: Duration, **options: Any) -> JobChange:
        sent = await asyncio.to_thread(commands.ask, self, verb, job_id, wait, **options)
        event = await commands.answer_of_async(self, sent)
        return await asyncio.to_thread(commands.meaning, self, job_id, event)

    def stop(self, job_id: str, wait: Duration) -> JobChange:
        return waiting.wait_for(waiting.stop(self, job_id, wait))

    async def astop(self, job_id: str, wait: Duration) -> JobChange:
        return await waiting.wait_for_async(waiting.stop(self, job_id, wait))

    def get(self, job_id: str) -> dict[str, Any]:
        with self.reading() as finder:
            return finder.job(job_id)

    def live_handlers(self) -> frozenset[str]:
        with self.reading() as finder:
            return finder.live_handlers(self.clock.now())
