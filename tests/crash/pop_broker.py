"""Run a name server and a broker in one process until standard input is closed; test_pop_kill.py kills it.

    python pop_broker.py DIRECTORY

It prints the name server's address, which stays the same over restarts.
"""

from __future__ import annotations

import sys

from raymq.actors.broker.service import BrokerService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import BrokerSpec, NameServerSpec

directory = sys.argv[1]
loop = EventLoopThread("services")
name_server = loop.run(NameServerService.start(NameServerSpec(0, directory, "127.0.0.1", 0)))
store = {"commitlog_file_bytes": 1 << 20, "index_slots": 100, "index_entries": 1000}
spec = BrokerSpec("broker-a", "test", f"{directory}/broker-a", "127.0.0.1", (name_server.address,), store=store)
loop.run(BrokerService.start(spec, "node"))
print(name_server.address, flush=True)
sys.stdin.read()
