"""Redrive dead letters in the background, and keep what became of it.

A redrive with a rate may take long: the page that started it shows its state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raymq.client import Admin, RayMQError, RedriveResult
from raymq.client.plain_data import to_plain_data

#: The jobs that are remembered, and those that may run at the same time.
_KEPT: Final = 50
_RUNNING: Final = 8
#: Message ids of each outcome in the answer; the counts are complete.
_LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """What is to be redriven; `ids` is None for all dead letters of the group."""

    group: str
    ids: Sequence[str] | None
    rate: float | None = None
    dry_run: bool = False
    force: bool = False


@dataclass(slots=True)
class RedriveJob:
    """One redrive.

    Attributes:
        state: "running", "done" or "failed".
        result: what was done. After a failure: what a dry run found then; `redriven` are then those that are still to
            do. None: nothing is known.
        handled: how many of `total` dead letters were sent, or found to be redriven; None: the search for them runs.
    """

    number: int
    request: RedriveRequest
    started_at: float
    state: str = "running"
    result: RedriveResult | None = None
    error: str = ""
    handled: int | None = None
    total: int | None = None

    def show_progress(self, handled: int, total: int) -> None:
        """Keep how many were handled, of how many."""
        self.handled, self.total = handled, total

    def as_data(self) -> dict[str, Any]:
        """Return the job for a page and its JSON."""
        result = self.result
        outcomes: dict[str, list[Any]] = {}
        if result is not None:
            # After a failure the dry run's "redriven" are those that it would redrive.
            first = "left" if self.state == "failed" else "redriven"
            outcomes = {
                first: result.redriven,
                "already": result.already,
                "unknown": result.unknown,
                "not_asked": result.not_asked,
                "unreadable": [to_plain_data(each) for each in result.unreadable],
            }
        return {
            "job": self.number,
            "group": self.request.group,
            "state": self.state,
            "dry_run": self.request.dry_run,
            "rate": self.request.rate,
            "selected": None if self.request.ids is None else len(self.request.ids),
            "started_at": self.started_at,
            "handled": self.handled,
            "total": self.total,
            "error": self.error,
            "counts": {name: len(found) for name, found in outcomes.items()},
            **{name: found[:_LISTED] for name, found in outcomes.items()},
        }


class TooManyJobs(RayMQError):
    """Too many redrives run already."""

    remedy = "wait until one of them is done"


class RedriveJobs:
    """The redrives that this console has started."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._jobs: dict[int, RedriveJob] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._count = 0

    def start(self, admin: Admin, request: RedriveRequest) -> RedriveJob:
        """Start a redrive.

        Raises:
            TooManyJobs.
        """
        if len(self._tasks) >= _RUNNING:
            raise TooManyJobs(f"{_RUNNING} redrives are running")
        self._count += 1
        job = RedriveJob(self._count, request, self._clock())
        self._jobs[job.number] = job
        for old in [number for number in self._jobs if number not in self._tasks][: max(0, len(self._jobs) - _KEPT)]:
            if old != job.number:
                del self._jobs[old]
        task = asyncio.create_task(self._run(admin, job))
        self._tasks[job.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.number, None))
        return job

    def get(self, number: int) -> RedriveJob | None:
        """Return a job that is remembered."""
        return self._jobs.get(number)

    async def wait(self, job: RedriveJob, seconds: float) -> None:
        """Wait until a job is done, at most some seconds."""
        task = self._tasks.get(job.number)
        if task is not None:
            await asyncio.wait([task], timeout=seconds)

    async def close(self) -> None:
        """Cancel what runs."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, admin: Admin, job: RedriveJob) -> None:
        wanted = job.request
        try:
            job.result = await admin.adlq_redrive(
                wanted.group, wanted.ids, wanted.rate, wanted.dry_run, force=wanted.force, progress=job.show_progress
            )
            job.state = "done"
        except RayMQError as error:
            job.error = str(error)
            if not wanted.dry_run:
                job.result = await _left(admin, wanted)
            job.state = "failed"
        except BaseException as error:
            job.error, job.state = f"interrupted: {error!r}", "failed"
            raise


async def _left(admin: Admin, wanted: RedriveRequest) -> RedriveResult | None:
    """Return what a dry run finds after a failure; None if it fails, too."""
    try:
        return await admin.adlq_redrive(wanted.group, wanted.ids, None, dry_run=True)
    except RayMQError:
        return None
