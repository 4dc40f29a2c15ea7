"""Serve the console on an address until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from raymq.client import Admin, Connection, InvalidInput
from raymq.console.access_guard import AccessGuard, Sessions, is_public
from raymq.console.cluster_sampler import ClusterSampler
from raymq.console.console_app import make_app
from raymq.console.console_context import ConsoleContext
from raymq.console.token_file import read_or_make_token

_END_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Where and for whom the console serves.

    Attributes:
        token_file: the file with the token for writes; None: nothing can be written.
        allowed_hosts: names, besides the address itself and localhost, under which browsers reach the console, such as
            that of a proxy.
        own_names: the machine's own names, which are allowed, too.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token_file: Path | None = None
    allowed_hosts: Collection[str] = ()
    own_names: Collection[str] = ()

    def token(self) -> str | None:
        """Return the token.

        Raises:
            InvalidInput: the console would be reached by other machines without a token; or the file cannot be used.
        """
        if self.token_file is not None:
            return read_or_make_token(self.token_file)
        if is_public(self.host, self.allowed_hosts):
            raise InvalidInput(
                "host",
                "a loopback address such as 127.0.0.1, and no further name, unless there is a token",
                ", ".join((self.host, *self.allowed_hosts)),
                remedy="add --token-file FILE: other machines then need the token for reads, too",
            )
        return None


@contextlib.asynccontextmanager
async def serving(
    mq: Connection,
    settings: ConsoleSettings,
    clock: Callable[[], float] = time.time,
    sampler: ClusterSampler | None = None,
) -> AsyncIterator[str]:
    """Serve within the block; the value is the console's URL.

    Args:
        sampler: one that has a history; None: a new one.

    Raises:
        InvalidInput: the address or the token file cannot be used.
    """
    token = settings.token()
    sessions = Sessions(clock)
    context = ConsoleContext(
        mq=mq,
        admin=(admin := Admin(mq)),
        sampler=sampler or ClusterSampler(admin, clock),
        guard=AccessGuard(settings.host, settings.allowed_hosts, token, sessions, settings.own_names),
        sessions=sessions,
        clock=clock,
        cookie=f"raymq_console_{settings.port}",
    )
    runner = web.AppRunner(make_app(context), access_log=None, shutdown_timeout=_END_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        try:
            await site.start()
        except OSError as error:
            actual = f"{settings.host}:{settings.port}: {error.strerror or error}"
            remedy = "choose another port; --port 0 takes a free one"
            raise InvalidInput("port", "an address that is free", actual, remedy=remedy) from error
        port = runner.addresses[0][1]
        context.cookie = f"raymq_console_{port}"  # Browsers send a cookie to every port of a host.
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        yield f"http://{host}:{port}/"
    finally:
        await runner.cleanup()
        await admin.aclose()


async def serve_until_signal(mq: Connection, settings: ConsoleSettings, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; call `started` with the URL."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for which in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(which, ended.set)
    async with serving(mq, settings) as url:
        started(url)
        await ended.wait()
