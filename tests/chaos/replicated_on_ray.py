"""A cluster of one group of two replicas on a local Ray that tests disturb, under traffic."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final, Self

from raymq import cluster
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.serving.quorum_transport import SocketQuorumTransport
from raymq.client import Admin, Producer, PushConsumer
from raymq.cluster import Cluster, keeper_bootstrap
from raymq.storage.files import json_file
from tests.chaos.traffic import Traffic
from tests.polling import poll_until

NAMESPACE: Final = "chaos"
GROUP: Final = "broker-a"
TOPIC: Final = "t"
CONFIG: Final[dict[str, Any]] = {"replication": "sync", "commitlog_file_bytes": 1 << 24, "index_slots": 1_000}


class GroupOnRay:
    """A cluster of one group of two replicas on this process's Ray, under traffic. Use `with`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.mq: Cluster = cluster.start(1, root, NAMESPACE, replicas=2, name_servers=2, config=CONFIG)
        Admin(self.mq).create_topic(TOPIC, queues=2)
        self._producers = [Producer(self.mq, f"p{number}") for number in range(2)]
        self.traffic = Traffic(TOPIC, self._producers)
        self._consumer = PushConsumer(self.mq, "group", {TOPIC: "*"}, self.traffic.listener, batch_size=8)

    def __enter__(self) -> Self:
        self._consumer.start()
        self.traffic.start()
        self.await_in_sync()
        self.await_sent(50)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AssertionError):
            self.traffic.stop()
        self._consumer.shutdown()
        for producer in self._producers:
            producer.close()
        self.mq.stop()

    @property
    def state(self) -> GroupState | None:
        """Read the state from the keepers without Ray; None if it is unavailable."""
        layout = json_file.load_as(self._root / keeper_bootstrap.LAYOUT_FILE, keeper_bootstrap.KeeperLayout.from_json)
        assert layout is not None

        async def read() -> GroupState | None:
            door = SocketQuorumTransport(layout.known)
            try:
                value = (await KeeperRegister(layout.known, door).read(GROUP)).value
            except RegisterError:
                return None
            finally:
                await door.close()
            return value if isinstance(value, GroupState) else None

        return asyncio.run(read())

    def await_in_sync(self, seconds: float = 60.0) -> None:
        """Wait for a master and two in-sync replicas."""
        poll_until(lambda: (state := self.state) is not None and state.master and len(state.in_sync) == 2, seconds)

    def await_sent(self, more: int, seconds: float = 60.0) -> None:
        """Wait for so many more acknowledgements."""
        acknowledged = self.traffic.account.acknowledged
        had = len(acknowledged)
        poll_until(lambda: len(acknowledged) > had + more, seconds, f"{more} more messages")

    def await_all(self) -> None:
        """End the traffic; check that all acknowledged messages arrive, and no refused ones."""
        self.traffic.stop()
        account = self.traffic.account
        poll_until(lambda: not account.lost, 60, "every acknowledged message arrives")
        assert account.ghosts == set()
