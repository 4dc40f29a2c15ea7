"""The base class of all clients of a connection.

It handles the open and closed states, calls from threads and from asyncio, pickling and `repr`.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from raymq.actors.errors import ClientClosed, WrongType
from raymq.client.connection import Connection
from raymq.storage.closeable import Closeable

_T = TypeVar("_T")


def check_connection(mq: object) -> None:
    """Raise WrongType unless `mq` is a `Connection`.

    `cluster.start()` and `cluster.connect()` return one.
    """
    if not isinstance(mq, Connection):
        raise WrongType("mq", "a connection, as cluster.start() and cluster.connect() return it", mq)


class ClientBase(Closeable):
    """A client of a connection; a context manager for `with` and `async with`.

    Its coroutines run on the connection's event loop.
    """

    #: The name of this kind of client in `ClientClosed` errors.
    KIND: ClassVar = "client"
    #: Whether other clients may send with it until they are closed.
    SENDS: ClassVar = False

    def __init__(self, mq: Connection) -> None:
        """Initialize the client.

        A subclass calls `adopt` of the connection when it is ready, so that the connection closes it.
        """
        self._mq = mq
        self._closed = False
        #: True in a forked child for a client that the parent opened.
        self._is_parents = False
        #: The requests that the first call sends before its own; None if none are left.
        self._opening: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._opening_turn = asyncio.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # Not a TypeError: for that Ray prints a page about the objects that the closure refers to.
        raise pickle.PicklingError(
            f"a {type(self).__name__} has sockets and threads of this process and cannot be sent to another one; "
            f"make it inside the task: {type(self).__name__}(mq, ...), where mq, the connection, can be sent"
        )

    def __repr__(self) -> str:
        """Return one line with the kind, the group, the cluster and the state."""
        shown = {**self._shown(), "state": self._state}
        mq = vars(self).get("_mq")  # absent if the constructor raised
        if mq is not None:
            shown["name_servers"] = ";".join(mq.name_servers)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def _shown(self) -> dict[str, object]:
        """Return the fields that distinguish this client from others of its kind."""
        group = vars(self).get("group")
        return {} if group is None else {"group": group}

    @property
    def _state(self) -> str:
        return "closed" if vars(self).get("_closed", True) else "open"

    async def __aenter__(self) -> Self:
        if self._opening is not None:
            await self._arun(_nothing())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def close(self, timeout: float = 10.0) -> None:  # noqa: ARG002 - every client's close has this parameter
        """Close the client: later calls raise ClientClosed. May be called twice."""
        self._closed = True

    def begin_close(self, timeout: float) -> Callable[[], None]:
        """Start to close, and return a function that waits for the end of it.

        The function waits until about `timeout` seconds from now. With it several clients are closed at the same time,
        also at interpreter exit, when no thread can be started.
        """
        deadline = time.monotonic() + timeout
        return lambda: self.close(max(0.0, deadline - time.monotonic()))

    async def aclose(self, timeout: float = 10.0) -> None:
        """`close` for asyncio code."""
        await asyncio.to_thread(self.close, timeout)

    def _open(self, opening: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Send a constructor's requests now, or with the first call.

        They are left to the first call where an event loop runs on this thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._mq.run(opening())
        else:
            self._opening = opening

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        self._check_open(coroutine)
        return self._mq.run(coroutine if self._opening is None else self._opened(coroutine))

    async def _arun(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        self._check_open(coroutine)
        return await self._mq.arun(coroutine if self._opening is None else self._opened(coroutine))

    async def _opened(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine after the requests that open the client.

        If these fail, the next call tries them again.
        """
        try:
            async with self._opening_turn:
                if self._opening is not None:
                    await self._opening()
                    self._opening = None
        except BaseException:
            coroutine.close()
            raise
        return await coroutine

    def _check_open(self, coroutine: Coroutine[Any, Any, Any] | None = None) -> None:
        if self._closed:
            if coroutine is not None:
                coroutine.close()
            if self._is_parents:
                raise ClientClosed(
                    f"the {self.KIND} belongs to the parent process; a child process has to create its own"
                )
            raise ClientClosed(f"the {self.KIND} is closed")


async def _nothing() -> None:
    pass
