"""Run one replica of a broker group without Ray in a separate process.

    replica_process.py SPEC

SPEC is JSON of the fields of a BrokerSpec. The program prints its address once it listens, and stops when its standard
input is closed. It executes the lines of its standard input:

    disk MODE              see `BrokenDisk`
    hold failpoint NAME    the next thread at that failpoint waits there
    hold files TEXT        the next sync of a file with TEXT in its path waits
    kill failpoint NAME    the process dies at that failpoint
    release                all waits end
    lose power TARGET SEED LUCK    the machine loses power: TARGET becomes what its next boot finds (`power_loss`)

The program prints "ok" for each line, and "held" when a thread begins to wait. With "boot" in SPEC it runs in that boot
of its machine, and only synced data survive a power loss.
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

from raymq.actors.broker.service import BrokerService
from raymq.actors.gc_tuning import tune_gc
from raymq.actors.protocol import BrokerSpec, Tls
from raymq.storage import clock, failpoints
from raymq.storage.files import file_calls

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a program, since the tests are not installed

from tests.chaos.failover.broken_disk import BrokenDisk
from tests.crash.power_loss import Disk


class HoldingDisk(BrokenDisk):
    """A disk whose syncs and failpoints wait as the lines command."""

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
        self._wait_if_held(fd)
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._wait_if_held(fd)
        super().fdatasync(fd)

    def _wait_if_held(self, fd: int) -> None:
        if self._files and self._files in os.readlink(f"/proc/self/fd/{fd}"):
            self._files = ""
            self._wait()


class Machine:
    """A machine on which only synced data survive a power loss."""

    def __init__(self, directory: Path, boot: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        file_calls.current = self._disk = Disk(directory)
        self._disk.remember_all()
        for module in list(sys.modules.values()):
            if getattr(module, "boot_id", None) is clock.boot_id:
                vars(module)["boot_id"] = lambda: boot

    def lose_power(self, target: str, seed: str, luck: str) -> None:
        """Lose power; called on the loop, so that nothing is acknowledged afterwards."""
        self._disk.after_power_loss(Path(target), random.Random(int(seed)), float(luck))
        os.kill(os.getpid(), signal.SIGKILL)


def spec_of(fields: dict[str, Any]) -> BrokerSpec:
    tls = fields.get("tls")
    return BrokerSpec(
        **{**fields, "name_servers": tuple(fields["name_servers"]), "tls": None if tls is None else Tls(**tls)}
    )


async def serve(fields: dict[str, Any], holding: HoldingDisk) -> None:
    boot = fields.pop("boot", None)
    machine = None if boot is None else Machine(Path(fields["directory"]), boot)
    service = await BrokerService.start(spec_of(fields), "node")
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

    threading.Thread(target=obey, daemon=True).start()  # not a thread of the broker
    await ended.wait()
    await service.stop()


if __name__ == "__main__":
    logging.basicConfig(
        level=os.environ.get("REPLICA_LOG", "INFO"), format="%(asctime)s %(process)d %(name)s %(message)s"
    )
    file_calls.current = holding = HoldingDisk()
    asyncio.run(serve(json.loads(sys.argv[1]), holding))
