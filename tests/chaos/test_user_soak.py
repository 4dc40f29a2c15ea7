"""Run consumers like users' for hours: slow listeners that sometimes fail, while consumers, brokers and connections
come and go. At the end all client tasks run, no message is lost, and the lag is 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.actors.broker import leader_service
from raymq.actors.broker.core.appending import admission
from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import BrokerSpec, NameServerSpec
from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, RayMQError, ReceivedMessage
from raymq.client.members.tag_filter import TagFilter
from raymq.client.push import consume_message_service
from raymq.client.push.consumer_settings import ConsumerSettings
from raymq.client.push.listener import ListenerRunner
from raymq.client.push.push_consumer_engine import PushConsumerEngine
from tests.broker_crash import crash_broker
from tests.chaos.virtual_time import CurrentThreadLoop, SequentialCalls, VirtualLoop, virtual_time
from tests.integration.conftest import Services
from tests.leading import start_leader
from tests.polling import poll_until

pytestmark = pytest.mark.chaos

SEED = int(os.environ.get("RAYMQ_SOAK_SEED", "7"))
#: Per group the seconds of a listener's call, and the interval of messages that fail at first.
LISTENERS = {"quick": (0.002, 50), "human": (0.05, 20), "slow": (1.0, 10)}
WORKS = {"heartbeat", "assignment", "commits", "expiry of calls", "fetches from broker-a", "fetches from broker-b"}


class Account:
    """The stored messages, and the successes of each group's listener."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stored: set[bytes] = set()
        self.done: defaultdict[str, Counter[bytes]] = defaultdict(Counter)
        self.failed: defaultdict[str, set[bytes]] = defaultdict(set)

    def listens(self, group: str, messages: list[ReceivedMessage]) -> ConsumeResult:
        """Return a listener's result: some messages fail the first time, by various errors."""
        _, every = LISTENERS[group]
        for message in messages:
            first = message.body not in self.failed[group]
            if first and int(message.body) % every == 0:
                self.failed[group].add(message.body)
                raise self.rng.choice([ValueError("no"), SystemExit(1), asyncio.CancelledError(), OverflowError()])
        self.done[group].update(message.body for message in messages)
        return ConsumeResult.SUCCESS

    def missing(self, group: str) -> set[bytes]:
        return self.stored - set(self.done[group])


# -- hours of virtual time -----------------------------------------------------------------------------------------


class VirtualCluster:
    """A name server, two brokers and clients on one loop with virtual time."""

    def __init__(self, loop: VirtualLoop, directory: Path) -> None:
        self.loop = loop
        self.directory = directory
        self.brokers: dict[str, LeaderService] = {}
        self.consumers: dict[str, PushConsumerEngine] = {}
        self.account = Account(SEED)

    async def start(self) -> None:
        self.name_server = await NameServerService.start(NameServerSpec(0, str(self.directory), "127.0.0.1", 0))
        for name in ("broker-a", "broker-b"):
            await self.start_broker(name)
        self.mq = self.connect()

    def connect(self) -> Connection:
        mq = Connection([self.name_server.address])
        mq._loop = CurrentThreadLoop(self.loop)  # type: ignore[assignment]
        return mq

    async def start_broker(self, name: str) -> None:
        store = {
            "delay_levels": "1s 5s 10s 30s",
            "commitlog_file_bytes": 1 << 24,
            "index_slots": 1_000,
            "index_entries": 100_000,
        }
        directory, address = str(self.directory / name), self.name_server.address
        spec = BrokerSpec(name, "test", directory, "127.0.0.1", (address,), append_wait_ms=5_000, store=store)
        self.brokers[name] = await start_leader(spec, "node")

    async def lose_broker(self, name: str) -> None:
        """Stop a broker as a kill does: nothing is saved."""
        await crash_broker(self.brokers.pop(name))

    async def start_consumer(self, group: str) -> None:
        seconds, _ = LISTENERS[group]

        def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
            self.loop.advance(seconds)
            return self.account.listens(group, messages)

        settings = ConsumerSettings(group, {"t": TagFilter.parse("*")})
        while True:
            consuming = PushConsumerEngine(self.mq, settings, ListenerRunner(listener), lambda _: None)
            try:
                await consuming.start()
            except RayMQError:
                await consuming.stop(0.0)
                await asyncio.sleep(1.0)
            else:
                self.consumers[group] = consuming
                return

    async def stop_consumer(self, group: str) -> None:
        await self.consumers.pop(group).stop(30.0)

    async def stop(self) -> None:
        for group in list(self.consumers):
            await self.stop_consumer(group)
        await self.mq.pool.close()
        for broker in self.brokers.values():
            await broker.stop()
        await self.name_server.stop()

    async def trouble(self, until: float) -> None:
        """Let brokers die for seconds or half an hour, consumers leave and return, and sockets break."""
        rng = self.account.rng
        while self.loop.time() < until:
            await asyncio.sleep(rng.uniform(60, 300))
            match rng.choice(["broker", "broker", "consumer", "connections"]):
                case "broker":
                    name = rng.choice(sorted(self.brokers))
                    await self.lose_broker(name)
                    await asyncio.sleep(rng.choice([2.0, 30.0, 1_800.0]))
                    await self.start_broker(name)
                case "consumer":
                    group = rng.choice(sorted(LISTENERS))
                    await self.stop_consumer(group)
                    await asyncio.sleep(rng.uniform(0, 60))
                    await self.start_consumer(group)
                case "connections":
                    break_sockets(self.mq)

    async def produce(self, until: float) -> None:
        """Send a message every four seconds: the rate of the slow listener."""
        producer = Producer(self.mq, "p")
        number = 0
        while self.loop.time() < until:
            number += 1
            body = b"%d" % number
            with contextlib.suppress(RayMQError):
                await producer.asend(Message("t", body))
                self.account.stored.add(body)
            await asyncio.sleep(4.0)
        producer._closed = True

    async def until(self, so: object, seconds: float, what: str) -> None:
        deadline = self.loop.time() + seconds
        while not so():  # type: ignore[operator]
            assert self.loop.time() < deadline, f"not within {seconds} s: {what}"
            await asyncio.sleep(1.0)


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder in memory, if possible: hours of virtual time sync thousands of times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_slow_listeners_survive_hours_of_lost_brokers(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_message_service, "ListenerThreads", SequentialCalls)
    # Frequent tasks of brokers do not matter here, and would be most of the work.
    monkeypatch.setattr(admission, "BEAT_SECONDS", 1.0)
    for name in ("_ROUND_SECONDS", "_IDLE_PROBE_SECONDS", "PROBE_SECONDS"):
        monkeypatch.setattr(leader_service, name, 1.0)
    hours = float(os.environ.get("RAYMQ_SOAK_HOURS", "2"))
    with virtual_time() as loop:
        loop.run_until_complete(run_cluster(VirtualCluster(loop, memory_folder), hours * 3600))


async def run_cluster(cluster: VirtualCluster, seconds: float) -> None:
    await cluster.start()
    for broker in cluster.brokers.values():
        broker.core.topics.create("t", queues=4)
        await broker.announce()
    for group in LISTENERS:
        await cluster.start_consumer(group)
    until = cluster.loop.time() + seconds
    await asyncio.gather(cluster.produce(until), cluster.trouble(until))
    account = cluster.account
    for group in LISTENERS:
        await cluster.until(lambda group=group: not account.missing(group), 3_600, f"{group}: all that was stored")  # type: ignore[misc]
    for group, consuming in cluster.consumers.items():
        assert consuming.supervisor.failures == []
        assert set(consuming.supervisor.works) >= WORKS
        await cluster.until(lambda c=consuming: broker_lag(cluster, c) == 0, 60, f"{group}: lag 0")  # type: ignore[misc]
    print(f"{len(account.stored)} messages; { ({g: d.total() for g, d in account.done.items()}) } successes")
    assert len(account.stored) > seconds / 4 / 3
    await cluster.stop()


def broker_lag(cluster: VirtualCluster, consuming: PushConsumerEngine) -> int:
    """Return the number of unprocessed messages from the brokers' tables."""
    total = 0
    for broker in cluster.brokers.values():
        for queue_id in range(4):
            _, high = broker.core.bounds("t", queue_id)
            total += high - (broker.core.offsets.get(consuming._settings.group, "t", queue_id) or 0)
    return total


# -- minutes of real time, with the threads that users have --------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "pace"),
    [(6, 2.5), pytest.param(600, 1.0, marks=[pytest.mark.soak, pytest.mark.timeout(900)])],
    ids=["short", "long"],
)
def test_slow_listeners_on_threads_survive_disturbances(tmp_path: Path, seconds: int, pace: float) -> None:
    """`pace`: how often something comes or goes, relative to the long form."""
    before = client_threads()  # of other tests in this process
    services = Services(tmp_path)
    services.start()
    account = Account(SEED)
    try:
        with Connection([services.name_server.address]) as mq:
            admin = Admin(mq)
            admin.create_topic("t", queues=4)
            consumers = {group: start_consumer(mq, group, account) for group in LISTENERS}
            trouble = threading.Thread(target=make_trouble, args=(services, mq, consumers, account, seconds, pace))
            trouble.start()
            deadline = time.monotonic() + seconds
            producer = Producer(mq, "p")
            number = 0
            while time.monotonic() < deadline:
                number += 1
                body = b"%d" % number
                with contextlib.suppress(RayMQError):
                    producer.send(Message("t", body))
                    account.stored.add(body)
                time.sleep(0.05)  # twenty a second: the rate of the slow listener's threads
            trouble.join(60)
            assert not trouble.is_alive()
            for group in LISTENERS:
                poll_until(lambda group=group: not account.missing(group), 120, f"{group}: all that was stored")  # type: ignore[misc]
            for group, consumer in consumers.items():
                poll_until(lambda c=consumer: set(c.health.works) >= WORKS, 30, f"{group}: everything lives")  # type: ignore[misc]
                assert consumer.health.failures == []
                poll_until(lambda group=group: reported_lag(admin, group) == 0, 30, f"{group}: lag 0")  # type: ignore[misc]
                consumer.shutdown()
            print(f"{len(account.stored)} messages; { ({g: d.total() for g, d in account.done.items()}) } successes")
        poll_until(lambda: not client_threads() - before, 10, "no thread is left behind")
    finally:
        services.stop()


def start_consumer(mq: Connection, group: str, account: Account) -> PushConsumer:
    seconds, _ = LISTENERS[group]

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        time.sleep(seconds)  # the work of a user's listener
        return account.listens(group, messages)

    consumer = PushConsumer(mq, group, {"t": "*"}, listener, threads=40)
    consumer.start()
    return consumer


def make_trouble(
    services: Services,
    mq: Connection,
    consumers: dict[str, PushConsumer],
    account: Account,
    seconds: float,
    pace: float,
) -> None:
    rng = random.Random(SEED)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(rng.uniform(1.0, 3.0) / pace)
        match rng.choice(["broker", "consumer", "connections"]):
            case "broker":
                name = rng.choice(sorted(services.brokers))
                services.crash_broker(name)
                time.sleep(rng.choice([0.1, 3.0]) / pace)
                services.start_broker(name)
            case "consumer":
                group = rng.choice(sorted(consumers))
                consumers[group].shutdown()
                consumers[group] = start_consumer(mq, group, account)
            case "connections":
                mq.loop.call_soon_threadsafe(break_sockets, mq)


def break_sockets(mq: Connection) -> None:
    """Break every socket of a client."""
    for peer in mq.pool._peers.values():
        if peer.connection is not None and peer.connection._transport is not None:
            peer.connection._transport.abort()


def reported_lag(admin: Admin, group: str) -> int:
    try:
        return sum(found.lag or 0 for found in admin.group_progress(group).values())
    except RayMQError:
        return -1


def client_threads() -> set[threading.Thread]:
    """Return the threads of clients; the brokers of this process have threads, too."""
    ours = ("raymq-client", "raymq-standby", *(f"raymq-{group}" for group in LISTENERS))
    return {thread for thread in threading.enumerate() if thread.name.startswith(ours)}
