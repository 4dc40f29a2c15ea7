"""What all pages of one console share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from raymq.client import Admin, Connection, Producer
from raymq.console.access_guard import AccessGuard, RequestFacts, Session, Sessions
from raymq.console.cluster_sampler import ClusterSampler
from raymq.console.redrive_jobs import RedriveJobs

_PRODUCER_GROUP: Final = "raymq-console"


@dataclass(slots=True)
class ConsoleContext:
    """The clients, the figures and the rules of one console."""

    mq: Connection
    admin: Admin
    sampler: ClusterSampler
    guard: AccessGuard
    sessions: Sessions
    clock: Callable[[], float]
    cookie: str
    jobs: RedriveJobs = field(default_factory=RedriveJobs)
    #: The handles of the messages that were recalled here, which brokers list until their time.
    recalled: deque[str] = field(default_factory=lambda: deque(maxlen=1_000))
    #: The number of open event streams, which is limited.
    streams: int = 0
    #: Set when the console ends, so that event streams end.
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    _producer: Producer | None = None

    @property
    def producer(self) -> Producer:
        """Return the producer of messages and recalls, made at its first use."""
        if self._producer is None:
            self._producer = Producer(self.mq, _PRODUCER_GROUP)
        return self._producer

    def session_of(self, request: web.Request) -> Session | None:
        """Return the session of a request's cookie."""
        return self.sessions.get(request.cookies.get(self.cookie))

    def facts_of(self, request: web.Request, csrf: str | None, *, is_open: bool) -> RequestFacts:
        """Return what the access rules look at."""
        headers = request.headers
        return RequestFacts(
            method=request.method,
            host=headers.get("Host"),
            origin=headers.get("Origin"),
            fetch_site=headers.get("Sec-Fetch-Site"),
            authorization=headers.get("Authorization"),
            session=request.cookies.get(self.cookie),
            csrf=csrf,
            is_open=is_open,
        )


CONTEXT: Final = web.AppKey("CONTEXT", ConsoleContext)
