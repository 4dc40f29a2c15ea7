"""A server in a process with a low limit of open files, for test_connection_limit.py.

It prints its address. Request code 1 opens a number of files, as a store would, closes them, and answers with the
number of connections that the server refused.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys

from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from tests.wire_server import serving

FILES = 256
OPENED = 40


def open_and_close_files(connection: ServerConnection, request: Command) -> Command:
    for fd in [os.open(os.devnull, os.O_RDONLY) for _ in range(OPENED)]:
        os.close(fd)
    return request.response(0, {"refused": connection._server.refused_connections})


async def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    async with serving({1: open_and_close_files}) as (_, address):
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
