"""Serve a console on a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from raymq.client import Connection
from raymq.console.cluster_sampler import ClusterSampler
from raymq.console.console_server import ConsoleSettings, serving


@contextlib.contextmanager
def running_console(mq: Connection, settings: ConsoleSettings, sampler: ClusterSampler | None = None) -> Iterator[str]:
    """Serve the console on a thread of its own."""
    urls: list[str] = []
    ready, end = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(mq, settings, sampler=sampler) as url:
            urls.append(url)
            ready.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30), "the console did not start"
        yield urls[0]
    finally:
        end.set()
        thread.join()
