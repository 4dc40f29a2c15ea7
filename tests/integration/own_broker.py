"""A name server and a broker in a separate process: `python own_broker.py DIRECTORY` prints both addresses.

The process ends when its standard input is closed.
"""

from __future__ import annotations

import sys

from raymq.actors.broker.service import BrokerService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.hosted_service import raise_file_limit
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import BrokerSpec, NameServerSpec

if __name__ == "__main__":
    directory = sys.argv[1]
    raise_file_limit()
    loop = EventLoopThread("services")
    name_server = loop.run(NameServerService.start(NameServerSpec(0, directory, "127.0.0.1", 0)))
    store = {"commitlog_file_bytes": 1 << 26, "index_slots": 1_000, "index_entries": 100_000}
    # The tests measure and send each request once: a busy machine must not make the broker refuse them.
    names = (name_server.address,)
    spec = BrokerSpec("broker-a", "test", directory, "127.0.0.1", names, append_wait_ms=60_000, store=store)
    broker = loop.run(BrokerService.start(spec, "node"))
    print(name_server.address, broker.address, flush=True)
    sys.stdin.read()
    loop.run(broker.stop())
    loop.run(name_server.stop())
    loop.stop()
