"""A cluster without Ray for tests of the client over real sockets: a name server and two brokers in this process."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import BrokerSpec, NameServerSpec
from raymq.client import Admin, Connection
from tests.broker_crash import crash_broker
from tests.integration.shell import Shell
from tests.leading import start_leader

if TYPE_CHECKING:
    from tests.integration.shared_spark import SharedSpark

DELAY_LEVELS = "1s 1s 1s 1s"
#: Larger files are prepared by a thread, which doubles the start's cost; smaller ones cannot hold the largest message.
LOG_FILE_BYTES = 5 << 20


@dataclass
class Services:
    """A name server and brokers on one event loop; `stop_broker` and `start_broker` stop and restart a broker."""

    directory: Path
    flush: str = "async"
    names: tuple[str, ...] = ("broker-a", "broker-b")
    auto_create_topics: bool = False
    transaction_check_after: float = 6.0
    transaction_check_every: float = 30.0
    transaction_check_max: int = 15
    loop: EventLoopThread = field(default_factory=lambda: EventLoopThread("services"))
    brokers: dict[str, LeaderService] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.name_server = self.loop.run(NameServerService.start(self.name_server_spec))
        for name in self.names:
            self.start_broker(name)
        self._clock = self.loop.submit(self._tick())

    @property
    def name_server_spec(self) -> NameServerSpec:
        return NameServerSpec(0, str(self.directory), "127.0.0.1", 0)

    def start_broker(self, name: str, host: str = "127.0.0.1") -> None:
        spec = BrokerSpec(
            name=name,
            cluster="test",
            directory=str(self.directory / name),
            host=host,
            name_servers=(self.name_server.address,),
            append_wait_ms=5_000,  # the tests share two cores with other processes
            auto_create_topics=self.auto_create_topics,
            store={
                "flush": self.flush,
                "delay_levels": DELAY_LEVELS,
                "commitlog_file_bytes": LOG_FILE_BYTES,
                "index_slots": 1_000,
                "index_entries": 100_000,
                "transaction_check_after": self.transaction_check_after,
                "transaction_check_every": self.transaction_check_every,
                "transaction_check_max": self.transaction_check_max,
            },
        )
        self.brokers[name] = self.loop.run(start_leader(spec, "node"))

    def stop_broker(self, name: str) -> None:
        self.loop.run(self.brokers.pop(name).stop())

    def crash_broker(self, name: str) -> None:
        """Stop a broker as a kill does: nothing is saved, the abort file stays; only the lock is released."""
        self.loop.run(crash_broker(self.brokers.pop(name)))

    def stop(self) -> None:
        self._stopped.set()
        self._clock.result(10)
        for name in list(self.brokers):
            self.stop_broker(name)
        self.loop.run(self.name_server.stop())
        self.loop.stop()

    async def _tick(self) -> None:
        """Deliver due messages, as the scheduler does."""
        while not self._stopped.is_set():
            for broker in list(self.brokers.values()):
                await broker.deliver_due(1)
            await asyncio.sleep(0.02)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = Services(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def mq(services: Services) -> Iterator[Connection]:
    with Connection([services.name_server.address]) as connection:
        yield connection


@pytest.fixture
def admin(mq: Connection) -> Admin:
    made = Admin(mq)
    made.create_topic("t", queues=2)
    return made


@pytest.fixture
def shell(mq: Connection) -> Shell:
    return Shell(mq)


@pytest.fixture(scope="module")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> SharedSpark:
    """Return the cluster and the Spark that test modules share; each module uses its own topic names."""
    from tests.integration.shared_spark import SharedSpark

    return SharedSpark.get(tmp_path_factory)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the shared Spark before the first test that does not use it, which may start its own Ray."""
    shared = sys.modules.get("tests.integration.shared_spark")
    if shared is not None and "shared_spark" not in getattr(nextitem, "fixturenames", ()):
        shared.SharedSpark.end()
