"""Share one connection among the tasks of a worker process, given only addresses.

A worker process runs one task after the other, and thousands of small ones in a job: a connection for each task would
cost more than its messages. So all tasks of a process share one, which is created with the first request of a task, and
closed when the process ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Final, Self, TypeVar

from raymq.actors.errors import BrokerUnavailable, RayMQError, TooFewInSync
from raymq.actors.protocol import Tls
from raymq.client.connection import Connection
from raymq.client.requests.broker_requests import retry_while_unavailable

_T = TypeVar("_T")

_shared: Final[dict[tuple[tuple[str, ...], Tls | None], Connection]] = {}


def shared_connection(name_servers: Sequence[str], tls: Tls | None = None) -> Connection:
    """Return the process's shared connection to the cluster of these name servers.

    All callers get the same connection. They must not close it: it is closed at the end of the process. Raises as
    `Connection`. Thread-safe.
    """
    cluster = tuple(name_servers), tls
    known = _shared.get(cluster)
    # If two threads create one at the same time, both get the first; the other one has opened nothing yet.
    return _shared.setdefault(cluster, Connection(name_servers, tls=tls)) if known is None else known


class TaskConnection:
    """A context manager over the connection that the tasks of this process share.

    Nothing is opened before its first use.
    """

    def __init__(
        self, name_servers: Sequence[str], tls: Tls | None = None, connection: Connection | None = None
    ) -> None:
        """Use `connection` instead of the shared one, if it is given.

        Its creator has to close it.
        """
        self._connection = connection
        self._name_servers = tuple(name_servers)
        self._tls = tls

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the connection open for the next task."""

    @property
    def _mq(self) -> Connection:
        return self._connection or shared_connection(self._name_servers, self._tls)

    def _patiently(self, topic: str, attempt: Callable[[], Coroutine[None, None, _T]]) -> _T:
        """Retry as `retry_while_unavailable`, with fresh routes of `topic` after each failure.

        A connection is older than the tasks that use it, so its routes may be older than the broker's address.
        """
        mq = self._mq
        return mq.run(_patient(mq, topic, attempt))

    def _begin_patiently(self, topic: str, attempt: Callable[[], Coroutine[None, None, _T]]) -> Future[_T]:
        """Start the same as `_patiently` in the background and return its future."""
        mq = self._mq
        return mq.submit(_patient(mq, topic, attempt))


async def _patient(mq: Connection, topic: str, attempt: Callable[[], Coroutine[None, None, _T]]) -> _T:
    failed = False

    async def with_fresh_routes() -> _T:
        nonlocal failed
        if failed:
            with contextlib.suppress(RayMQError):
                await mq.routes.get(topic, fresh=True)
        try:
            return await attempt()
        except BrokerUnavailable:
            failed = True
            raise

    return await retry_while_unavailable(with_fresh_routes, passing=(BrokerUnavailable, TooFewInSync))
