"""A name server and a broker without Ray in a process of their own, for benchmarks of two processes.

Prints the name server's address; ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from raymq.actors.broker_service import BrokerService
from raymq.actors.name_server_service import NameServerService
from raymq.actors.protocol import BrokerSpec, NameServerSpec


async def serve(directory: Path) -> None:
    """Run both until standard input ends."""
    name_server = await NameServerService.start(NameServerSpec(0, str(directory), "127.0.0.1", 0))
    spec = BrokerSpec("broker-a", "bench", str(directory / "broker-a"), "127.0.0.1", (name_server.address,))
    broker = await BrokerService.start(spec, "node")
    print(name_server.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await broker.stop()
    await name_server.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
