"""A name server in a process of its own, without Ray: name_server_process.py DIRECTORY. Prints its address, and ends
with its standard input.
"""

from __future__ import annotations

import asyncio
import sys

from raymq.actors.gc_tuning import tune_gc
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec


async def serve(directory: str) -> None:
    """Until standard input ends."""
    service = await NameServerService.start(NameServerSpec(0, directory, "127.0.0.1", 0))
    tune_gc()
    print(service.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await service.stop()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
