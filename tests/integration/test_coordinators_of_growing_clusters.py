"""Test that a series keeps one coordinator, and commits each batch once, while brokers join and leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.coordinator_directory_commands import BROKERS_NAMESPACE
from raymq.client import Admin, Connection
from raymq.client.bulk import coordinator_lookup as lookup_module
from raymq.client.bulk.coordinator_lookup import ensure_coordinator, find_coordinator
from raymq.client.bulk.staged_write import CommittedWrite, StagedWrite
from raymq.client.bulk.staged_writer import StagedWriter
from raymq.storage.records.record import encode
from tests import staged_rows
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

SERIES = "query/t/"


@pytest.fixture
def one_broker(tmp_path: Path) -> Iterator[Services]:
    """Yield a name server and one broker."""
    made = Services(tmp_path, names=("broker-a",))
    made.start()
    yield made
    made.stop()


def masters(mq: Connection) -> set[str]:
    return set(mq.run(mq.routes.cluster()).masters)


def write_batch(services: Services, number: int, broker: str) -> CommittedWrite:
    """Write a batch as a newly started driver does."""
    with Connection([services.name_server.address]) as mq:
        opened = StagedWrite.open(mq, "t", {broker}, series=SERIES, number=number)
        if isinstance(opened, CommittedWrite):
            return opened
        record = encode("t", 0, b"batch %d" % number, b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
        with StagedWriter([services.name_server.address]) as writer:
            queue = MessageQueue("t", broker, 0)
            sizes = np.array([len(record)], np.int32)
            staged_rows.send_chunk(writer, opened, "p", 0, queue, record, sizes)
        return opened.commit([("p", broker, 1)])


def shorten_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all waits for a broker to at most one second."""

    async def soon(attempt: object, seconds: float = 0.0) -> object:
        return await real(attempt, min(seconds, 1.0))  # type: ignore[arg-type]

    real = lookup_module.retry_while_unavailable
    monkeypatch.setattr(lookup_module, "retry_while_unavailable", soon)


def restart_name_server(services: Services) -> None:
    """Restart the name server, which loses its in-memory state."""
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
def test_batch_is_written_once_while_coordinator_is_offline(
    one_broker: Services, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    shorten_waits(monkeypatch)
    with Connection([one_broker.name_server.address]) as mq:
        Admin(mq).create_topic("t", queues=1)
        first = [write_batch(one_broker, number, "broker-a") for number in (0, 1)]
        if meanwhile == "while it is there":
            one_broker.start_broker("broker-b")
            poll_until(lambda: one_broker.brokers["broker-b"].core.coordinators.members == ["broker-a", "broker-b"])
        one_broker.crash_broker("broker-a")
        poll_until(lambda: "broker-a" not in masters(mq))
        if meanwhile == "when the name server has forgotten it":
            restart_name_server(one_broker)
        if meanwhile != "while it is there":
            one_broker.start_broker("broker-b")
        poll_until(lambda: masters(mq) == {"broker-b"})
        if meanwhile != "while it is there":
            Admin(mq).create_topic("t", queues=1)
        with pytest.raises(BrokerUnavailable, match="broker-a"):
            write_batch(one_broker, 1, "broker-b")
        one_broker.start_broker("broker-a")
        poll_until(lambda: masters(mq) == {"broker-a", "broker-b"})
        assert write_batch(one_broker, 1, "broker-b") == first[1]
        assert mq.run(ensure_coordinator(mq, "series", SERIES)) == "broker-a"
        assert write_batch(one_broker, 2, "broker-a").rows == 1
    names = [f"broker-{letter}" for letter in "ab"]
    poll_until(lambda: all(not broker.core.coordinators.unsynced_brokers() for broker in one_broker.brokers.values()))
    assert [broker.core.coordinators.members for broker in one_broker.brokers.values()] == [names, names]


def test_lookups_with_different_candidates_agree(services: Services, mq: Connection) -> None:
    async def both() -> list[str]:
        candidates = ({"broker-a"}, {"broker-b"})
        return list(
            await asyncio.gather(
                *(ensure_coordinator(mq, "stream", f"k{n}", among=each) for n in range(20) for each in candidates)
            )
        )

    found = mq.run(both())
    assert found[::2] == found[1::2]
    for number, coordinator in enumerate(found[::2]):
        assert {broker.core.coordinators.find("stream", f"k{number}") for broker in services.brokers.values()} == {
            coordinator
        }


def test_lookup_waits_for_lost_broker_until_it_is_forgotten(
    services: Services, mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_waits(monkeypatch)
    admin = Admin(mq)
    known = mq.run(ensure_coordinator(mq, "series", "old", among={"broker-b"}))
    assert known == "broker-b"
    assert mq.run(ensure_coordinator(mq, "series", "lost", among={"broker-a"})) == "broker-a"
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
    assert mq.run(ensure_coordinator(mq, "series", "lost")) == "broker-a"
    services.start_broker("broker-c")
    poll_until(lambda: services.brokers["broker-c"].core.coordinators.members == ["broker-b", "broker-c"])
    poll_until(lambda: not services.brokers["broker-c"].core.coordinators.unsynced_brokers())
    assert services.brokers["broker-c"].core.coordinators.find("series", "new") == "broker-b"


def test_brokers_register_again_after_name_server_data_loss(services: Services, mq: Connection) -> None:
    poll_until(lambda: mq.run(find_coordinator(mq, "series", "k")) == {"broker-a": True, "broker-b": True})
    for file in services.directory.glob("name-server-*.kv.json*"):
        file.unlink()
    restart_name_server(services)
    poll_until(lambda: masters(mq) == {"broker-a", "broker-b"})
    kept = services.name_server._entries
    poll_until(lambda: all(kept.find(BROKERS_NAMESPACE, name) for name in ("broker-a", "broker-b")), 20.0)
