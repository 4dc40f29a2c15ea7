"""Whatever brokers come, go and are forgotten meanwhile, a series has one home, and a batch of it is committed once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.known_broker_commands import BROKERS_NAMESPACE
from raymq.client import Admin, Connection
from raymq.client.bulk import coordinator_lookup as homes
from raymq.client.bulk.coordinator_lookup import ensure_coordinator, find_coordinator
from raymq.client.bulk.staged_write import CommittedWrite, StagedWrite
from raymq.client.bulk.staged_writer import StagedWriter
from raymq.storage.records.record import encode
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

SERIES = "query/t/"


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Services]:
    """A name server, and one broker."""
    made = Services(tmp_path, names=("broker-a",))
    made.start()
    yield made
    made.stop()


def masters(mq: Connection) -> set[str]:
    return set(mq.run(mq.routes.cluster()).masters)


def write(services: Services, number: int, broker: str) -> CommittedWrite:
    """What a driver that has just started does with a batch."""
    with Connection([services.name_server.address]) as mq:
        opened = StagedWrite.open(mq, "t", {broker}, series=SERIES, number=number)
        if isinstance(opened, CommittedWrite):
            return opened
        record = encode("t", 0, b"batch %d" % number, b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
        with StagedWriter([services.name_server.address]) as writer:
            queue = MessageQueue("t", broker, 0)
            sizes = np.array([len(record)], np.int32)
            writer.stage(opened.transaction, "p", 0, queue, record, sizes, home=opened.home)
        return opened.commit([("p", broker, 1)])


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a broker gives up soon."""

    async def soon(attempt: object, seconds: float = 0.0) -> object:
        return await real(attempt, min(seconds, 1.0))  # type: ignore[arg-type]

    real = homes.retry_while_unavailable
    monkeypatch.setattr(homes, "retry_while_unavailable", soon)


def restart_name_server(services: Services) -> None:
    """It has forgotten all that it does not keep."""
    spec = services.name_server_spec
    services.loop.run(services.name_server.stop())
    services.name_server = services.loop.run(NameServerService.start(spec))


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param("while it is there", marks=pytest.mark.long),
        "while it is away",
        "when the name server has forgotten it",
    ],
)
def test_a_batch_is_written_once_though_a_broker_comes_and_the_home_is_away(
    one: Services, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    quick(monkeypatch)
    with Connection([one.name_server.address]) as mq:
        Admin(mq).create_topic("t", queues=1)
        first = [write(one, number, "broker-a") for number in (0, 1)]
        if meanwhile == "while it is there":
            one.start_broker("broker-b")
            poll_until(lambda: one.brokers["broker-b"].core.homes.members == ["broker-a", "broker-b"])
        one.crash_broker("broker-a")
        poll_until(lambda: "broker-a" not in masters(mq))
        if meanwhile == "when the name server has forgotten it":
            restart_name_server(one)
        if meanwhile != "while it is there":
            one.start_broker("broker-b")
        poll_until(lambda: masters(mq) == {"broker-b"})
        if meanwhile != "while it is there":
            Admin(mq).create_topic("t", queues=1)
        with pytest.raises(BrokerUnavailable, match="broker-a"):
            write(one, 1, "broker-b")
        one.start_broker("broker-a")
        poll_until(lambda: masters(mq) == {"broker-a", "broker-b"})
        assert write(one, 1, "broker-b") == first[1]
        assert mq.run(ensure_coordinator(mq, "series", SERIES)) == "broker-a"
        assert write(one, 2, "broker-a").rows == 1
    met = [f"broker-{letter}" for letter in "ab"]
    poll_until(lambda: all(not broker.core.homes.unsynced_brokers() for broker in one.brokers.values()))
    assert [broker.core.homes.members for broker in one.brokers.values()] == [met, met]


def test_of_two_who_may_take_different_brokers_one_makes_the_home(services: Services, mq: Connection) -> None:
    async def both() -> list[str]:
        candidates = ({"broker-a"}, {"broker-b"})
        return list(
            await asyncio.gather(
                *(ensure_coordinator(mq, "stream", f"k{n}", among=each) for n in range(20) for each in candidates)
            )
        )

    found = mq.run(both())
    assert found[::2] == found[1::2]
    for number, home in enumerate(found[::2]):
        assert {broker.core.homes.find("stream", f"k{number}") for broker in services.brokers.values()} == {home}


def test_a_broker_that_is_gone_for_good_is_waited_for_until_it_is_forgotten(
    services: Services, mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    admin = Admin(mq)
    known = mq.run(ensure_coordinator(mq, "series", "old", among={"broker-b"}))
    assert known == "broker-b"
    with pytest.raises(InvalidInput, match="left the routes"):
        admin.forget_broker("broker-a")
    services.crash_broker("broker-a")
    poll_until(lambda: masters(mq) == {"broker-b"})
    with pytest.raises(BrokerUnavailable, match=r"broker-a.*forget_broker"):
        mq.run(ensure_coordinator(mq, "series", "new"))
    assert mq.run(ensure_coordinator(mq, "series", "old")) == "broker-b"
    admin.forget_broker("broker-a")
    assert mq.run(find_coordinator(mq, "series", "new")) == {"broker-b": True}
    assert mq.run(ensure_coordinator(mq, "series", "new")) == "broker-b"
    services.start_broker("broker-c")
    poll_until(lambda: services.brokers["broker-c"].core.homes.members == ["broker-b", "broker-c"])
    poll_until(lambda: not services.brokers["broker-c"].core.homes.unsynced_brokers())
    assert services.brokers["broker-c"].core.homes.find("series", "new") == "broker-b"


def test_a_name_server_that_has_lost_its_files_is_told_again_who_is_there(services: Services, mq: Connection) -> None:
    poll_until(lambda: mq.run(find_coordinator(mq, "series", "k")) == {"broker-a": True, "broker-b": True})
    for file in services.directory.glob("name-server-*.kv.json*"):
        file.unlink()
    restart_name_server(services)
    poll_until(lambda: masters(mq) == {"broker-a", "broker-b"})
    kept = services.name_server._entries
    poll_until(lambda: all(kept.find(BROKERS_NAMESPACE, name) for name in ("broker-a", "broker-b")), 20.0)
