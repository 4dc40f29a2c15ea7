"""One replica of a broker group without Ray, in a process of its own.

    replica_process.py SPEC

SPEC is JSON of the fields of a BrokerSpec. It prints its address once it listens, and stops when its standard input is
closed. Lines on that are obeyed:

    disk MODE              see `BrokenDisk`
    hold failpoint NAME    the thread that comes to that failpoint next waits there
    hold files TEXT        who is the next to bring a file to disk that has TEXT in its path waits before it
    kill failpoint NAME    it dies there
    release                nobody waits any more
    lose power TARGET SEED LUCK    the machine goes down: TARGET is made what its next boot finds (`power_loss`)

It says "ok" to each, and "held" when somebody begins to wait. With "boot" in SPEC it runs in that start of its machine,
and only what is synced is on disk.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from raymq.actors.broker.replica.service import ReplicaService
from raymq.actors.gc_tuning import tune_gc
from raymq.actors.protocol import BrokerSpec, Tls
from raymq.storage import clock, failpoints
from raymq.storage.files import file_calls

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a program: the tests' folder is not installed

from tests.chaos.failover.broken_disk import BrokenDisk
from tests.crash.power_loss import Disk


class HoldingDisk(BrokenDisk):
    """A disk for which somebody waits where the lines say so."""

    def __init__(self) -> None:
        super().__init__()
        self._files = ""
        self._may_go = threading.Event()
        self._may_go.set()

    def obey(self, line: str) -> None:
        match line.split():
            case ["hold", "failpoint", name]:
                self._may_go.clear()
                failpoints.arm(name, self._wait)
            case ["hold", "files", text]:
                self._may_go.clear()
                self._files = text
            case ["disk", mode]:
                self.become(mode)
            case ["kill", "failpoint", name]:
                failpoints.arm(name)
            case ["release"]:
                self._may_go.set()
            case _:
                raise ValueError(line)

    def _wait(self) -> None:
        print("held", flush=True)
        self._may_go.wait()

    def fsync(self, fd: int) -> None:
        if self._files and self._files in os.readlink(f"/proc/self/fd/{fd}"):
            self._files = ""
            self._wait()
        super().fsync(fd)


class Machine:
    """Of which only what is synced outlives a loss of power."""

    def __init__(self, directory: Path, boot: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        file_calls.current = self._disk = Disk(directory)
        self._disk.remember_all()
        for module in list(sys.modules.values()):
            if getattr(module, "boot_id", None) is clock.boot_id:
                vars(module)["boot_id"] = lambda: boot

    def lose_power(self, target: str, seed: str, luck: str) -> None:
        """On the loop: nothing is acknowledged any more."""
        self._disk.after_power_loss(Path(target), random.Random(int(seed)), float(luck))
        os.kill(os.getpid(), signal.SIGKILL)


def spec_of(told: dict[str, Any]) -> BrokerSpec:
    tls = told.get("tls")
    return BrokerSpec(
        **{**told, "name_servers": tuple(told["name_servers"]), "tls": None if tls is None else Tls(**tls)}
    )


async def serve(told: dict[str, Any], holding: HoldingDisk) -> None:
    boot = told.pop("boot", None)
    machine = None if boot is None else Machine(Path(told["directory"]), boot)
    service = await ReplicaService.start(spec_of(told), "node")
    tune_gc()
    print(service.address, flush=True)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def obey() -> None:
        for line in sys.stdin:
            if machine is not None and line.startswith("lose power "):
                loop.call_soon_threadsafe(machine.lose_power, *line.split()[2:])
            else:
                holding.obey(line)
            print("ok", flush=True)
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=obey, daemon=True).start()  # not one of the broker's own
    await ended.wait()
    await service.stop()


if __name__ == "__main__":
    logging.basicConfig(
        level=os.environ.get("REPLICA_LOG", "INFO"), format="%(asctime)s %(process)d %(name)s %(message)s"
    )
    file_calls.current = holding = HoldingDisk()
    asyncio.run(serve(json.loads(sys.argv[1]), holding))
