"""Run a coordinator in a process of its own, without Ray.

    coordinator_process.py KEEPERS SETTINGS    until SIGTERM; prints "ready", and elections on stderr

KEEPERS is the JSON of a set of keepers (`KeeperSet.to_json`). SETTINGS is a JSON object:
    {"groups": ["broker-a"], "replication": "sync", "min_in_sync": 1}    all but "groups" may be left out
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from typing import Any

from raymq.actors.coordinator.service import CoordinatorService
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.protocol import CoordinatorSpec
from tests.fork_server import Program


class CoordinatorProcess:
    """Own one coordinator process; `start` restarts it after `kill`."""

    def __init__(self, keepers: KeeperSet, groups: list[str], **settings: Any) -> None:
        self._arguments = [json.dumps(keepers.to_json()), json.dumps({"groups": groups, **settings})]
        self.start()

    def start(self) -> None:
        self.process = Program([__file__, *self._arguments], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "ready"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30.0)

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30.0)


async def coordinate(keepers: dict[str, Any], settings: dict[str, Any]) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    groups = tuple(settings.pop("groups"))
    service = await CoordinatorService.start(CoordinatorSpec("c", keepers, groups, **settings))
    print("ready", flush=True)
    await stopping.wait()
    await service.stop()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    asyncio.run(coordinate(json.loads(sys.argv[1]), json.loads(sys.argv[2])))
