"""The console actor.

With the setting `console: true`, the console runs as long as its cluster.

It runs on the machine of the first name server, where its token file is. Name servers have an entry with its URL, so
that commands find it without Ray.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray

from raymq.actors import actor_calls
from raymq.actors.actor_options import BINDING_RESOURCE, detached_options
from raymq.actors.address_watch import resolve_own_address
from raymq.actors.errors import InvalidInput
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.hosted_service import HostedService, raise_file_limit
from raymq.actors.naming import CONSOLE_NAME, name_server_name
from raymq.actors.protocol import Tls
from raymq.client import Connection
from raymq.cluster.console_entry import publish_console

#: The file with the console's token, in the cluster's root.
TOKEN_FILE: Final = "console.token"  # noqa: S105 - the name of a file
#: The seconds for the address of a name server, which may be restarting too.
_ADDRESS_SECONDS: Final = 10.0
_PATIENCE_SECONDS: Final = 5.0
#: Listens on all addresses of the machine.
_UNSPECIFIED: Final = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ConsoleSpec:
    """The arguments of the console actor; a restart gets the same ones.

    Attributes:
        name_servers: how many there are.
        machine: the address of the console's machine.
        host, port: where it listens; port 0 takes any free one.
        root: the cluster's root, which has the token file.
        allowed_hosts: further names of the console in browsers.
    """

    namespace: str
    name_servers: int
    machine: str
    host: str
    port: int
    root: str
    tls: Tls | None = None
    allowed_hosts: tuple[str, ...] = ()


@dataclass(slots=True)
class RunningConsole:
    """A console that serves at its URL until `stop`."""

    url: str
    opened: AsyncExitStack

    async def stop(self) -> None:
        """Close the port and the connection."""
        await self.opened.aclose()


class Console:
    """The console of a cluster. Ray restarts it with the same spec."""

    def __init__(self, spec: ConsoleSpec) -> None:
        self._spec = spec
        raise_file_limit()
        self._loop = EventLoopThread(CONSOLE_NAME)
        self._hosted = HostedService(CONSOLE_NAME, self._loop, self._start)

    def __repr__(self) -> str:
        """Return the name in Ray's dashboard and before its lines in Ray's logs."""
        return f"Console({self._spec.namespace})"

    def url(self, seconds: float, patience: float) -> str:
        """Return the URL, once the console serves; see `HostedService.wait`."""
        return self._hosted.wait(seconds, patience).url

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def stop(self) -> None:
        """Close the port; the caller kills the actor next."""
        self._hosted.stop()

    async def _start(self) -> RunningConsole:
        from raymq.console.console_server import ConsoleSettings, serving

        spec = self._spec
        own = resolve_own_address(spec.machine)
        token_file = Path(spec.root, TOKEN_FILE)
        await asyncio.to_thread(token_file.parent.mkdir, parents=True, exist_ok=True)
        settings = ConsoleSettings(spec.host, spec.port, token_file, spec.allowed_hosts, (own, socket.gethostname()))
        name_servers = await asyncio.to_thread(_addresses, spec)
        async with AsyncExitStack() as opened:
            mq = Connection(name_servers, namespace=spec.namespace, tls=spec.tls)
            opened.push_async_callback(mq.aclose)
            try:
                url = await opened.enter_async_context(serving(mq, settings))
            except InvalidInput as error:
                if error.field == "port":
                    error = InvalidInput(
                        "console_port", error.limit, error.actual, remedy="choose another port; 0 takes any free one"
                    )
                raise error from None
            if spec.host in _UNSPECIFIED:
                port = url.rstrip("/").rpartition(":")[2]
                url = f"http://[{own}]:{port}/" if ":" in own else f"http://{own}:{port}/"
            await asyncio.to_thread(publish_console, mq, url)
            return RunningConsole(url, opened.pop_all())


def make_console(spec: ConsoleSpec, resource: str) -> Any:
    """Start (or find) the console on the machine that has `resource`."""
    options = detached_options(CONSOLE_NAME, spec.namespace, {resource: BINDING_RESOURCE})
    return ray.remote(Console).options(**options).remote(spec)


def _addresses(spec: ConsoleSpec) -> Sequence[str]:
    """Return the present addresses of the name servers."""
    names = [name_server_name(index) for index in range(spec.name_servers)]
    return [
        actor_calls.call(
            name,
            actor_calls.find(name, spec.namespace),
            "address",
            _ADDRESS_SECONDS,
            _PATIENCE_SECONDS,
            timeout=_ADDRESS_SECONDS,
        )
        for name in names
    ]
