"""Run one server of a cluster without Ray in a process of its own, with a controllable disk and clock.

It prints a line of JSON with its address once it serves, and reads commands from its standard input until its end:

    disk MODE [SECONDS]   see `BrokenDisk`
    clock SECONDS         move the wall clock ahead, or back
    keeper status         for a keeper: print its state
    keeper anew MADE      for a keeper that lost its file: begin with that incarnation; print its state
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

from raymq.actors.broker.service import BrokerService
from raymq.actors.coordinator.service import CoordinatorService
from raymq.actors.gc_tuning import tune_gc
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.serving.service import KeeperService
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import BrokerSpec, CoordinatorSpec, KeeperSpec, NameServerSpec
from raymq.storage.files.file_calls import replaced
from tests.chaos.failover.broken_disk import BrokenDisk
from tests.chaos.failover.set_clock import SetClock


async def start_server(what: str, spec: dict[str, Any]) -> Any:
    """Start the server of `spec`; it has an address and a `stop`."""
    if what == "names":
        return await NameServerService.start(NameServerSpec(**spec))
    if what == "keeper":
        return await KeeperService.start(KeeperSpec(**spec))
    if what == "coordinator":
        return await CoordinatorService.start(CoordinatorSpec(**{**spec, "groups": tuple(spec["groups"])}))
    made = BrokerSpec(**{**spec, "name_servers": tuple(spec["name_servers"])})
    return await BrokerService.start(made, "node")


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def log_stacks() -> None:
    """Log the stacks of all threads and tasks, to debug a hanging server."""
    faulthandler.dump_traceback(all_threads=True)
    for task in asyncio.all_tasks():
        task.print_stack(limit=12)
    sys.stderr.flush()


async def serve(what: str, spec: dict[str, Any], disk: BrokenDisk, clock: SetClock) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR2, log_stacks)
    service = await start_server(what, spec)
    tune_gc()
    ended = asyncio.Event()

    async def keeper(words: list[str]) -> None:
        if words[0] == "anew":
            await service.reset(KeeperRecord(spec["cluster"], spec["number"], words[1]))
        say(state=service.keeper.status.state)

    def obey() -> None:
        """Read commands on a thread of its own: the loop may wait for the disk that a command repairs."""
        for line in sys.stdin:
            match line.split():
                case ["disk", mode]:
                    disk.become(mode)
                case ["disk", mode, seconds]:
                    disk.become(mode, float(seconds))
                case ["clock", seconds]:
                    clock.step(float(seconds))
                case ["keeper", *words]:
                    asyncio.run_coroutine_threadsafe(keeper(words), loop)
        disk.become("fine")
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=obey, daemon=True).start()
    say(address=getattr(service, "address", ""), pid=os.getpid())
    await ended.wait()
    await service.stop()


def main(what: str, spec: dict[str, Any], clock: SetClock) -> None:
    """Serve until standard input is closed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    disk = BrokenDisk()
    with replaced(disk):
        asyncio.run(serve(what, spec, disk, clock))
