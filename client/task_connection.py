"""What tasks of other processes work with: it needs addresses only.

A worker process runs one task after the other, and thousands of small ones in a job: a connection of its own would cost
each of them more than its messages. So all tasks of a process share one, which is made when the first of them asks a
broker something, and closed as the process ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Final, Self, TypeVar

from raymq.actors.errors import BrokerUnavailable, RayMQError, TooFewInSync
from raymq.actors.protocol import Tls
from raymq.client.connection import Connection
from raymq.client.requests.asking import patiently

_T = TypeVar("_T")

_shared: Final[dict[tuple[tuple[str, ...], Tls | None], Connection]] = {}


def shared_connection(name_servers: Sequence[str], tls: Tls | None = None) -> Connection:
    """The process's connection to the cluster of these name servers, the same for all who ask for it. Any thread.

    It is not theirs to close: the end of the process does that. Raises as `Connection`.
    """
    cluster = tuple(name_servers), tls
    known = _shared.get(cluster)
    # Of two threads that make one at the same time both get the first; the other one has opened nothing yet.
    return _shared.setdefault(cluster, Connection(name_servers, tls=tls)) if known is None else known


class TaskConnection:
    """A context manager over the connection that the tasks of this process share; nothing is opened before its use."""

    def __init__(
        self, name_servers: Sequence[str], tls: Tls | None = None, connection: Connection | None = None
    ) -> None:
        """`connection` is used in the place of the shared one; it is its maker's to close."""
        self._connection = connection
        self._name_servers = tuple(name_servers)
        self._tls = tls

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The connection stays, for the next task."""

    @property
    def _mq(self) -> Connection:
        return self._connection or shared_connection(self._name_servers, self._tls)

    def _patiently(self, topic: str, attempt: Callable[[], Coroutine[None, None, _T]]) -> _T:
        """`patiently`, and the routes of `topic` are asked for anew after each failure.

        A connection outlives the tasks that use it: what it knows may be older than the broker's address.
        """
        mq = self._mq
        return mq.run(_patient(mq, topic, attempt))

    def _begin_patiently(self, topic: str, attempt: Callable[[], Coroutine[None, None, _T]]) -> Future[_T]:
        """`_patiently` that goes on beside its caller."""
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

    return await patiently(with_fresh_routes, passing=(BrokerUnavailable, TooFewInSync))
