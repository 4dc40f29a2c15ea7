"""A server in a process that may open few files. Says its address, and answers with how many connections it refused.

Used by test_connection_limit.py. Code 1 opens a number of files, as a store would, and closes them.
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


def open_some(connection: ServerConnection, request: Command) -> Command:
    for fd in [os.open(os.devnull, os.O_RDONLY) for _ in range(OPENED)]:
        os.close(fd)
    return request.response(0, {"refused": connection._server.refused_connections})


async def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    async with serving({1: open_some}) as (_, address):
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
