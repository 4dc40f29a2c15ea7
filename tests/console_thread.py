"""Serve a console on a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future

from raymq.client import Connection
from raymq.console.cluster_sampler import ClusterSampler
from raymq.console.console_server import ConsoleSettings, serving


@contextlib.contextmanager
def running_console(mq: Connection, settings: ConsoleSettings, sampler: ClusterSampler | None = None) -> Iterator[str]:
    """Serve the console on a thread of its own."""
    started: Future[str] = Future()
    end = threading.Event()

    async def serve() -> None:
        async with serving(mq, settings, sampler=sampler) as url:
            started.set_result(url)
            await asyncio.to_thread(end.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield started.result(30)
    finally:
        end.set()
        thread.join()
