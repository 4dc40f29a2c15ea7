"""Where a name server still tells an address that another broker has by now, nobody takes the one for the other."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.wire.commands.coordinator_directory_commands import find_coordinator_command
from raymq.actors.wire.commands.staged_write_commands import (
    TransactionAction,
    decide_write_command,
    open_write_command,
    read_transaction_reply,
    stage_command,
)
from raymq.actors.wire.commands.target_broker import with_target_broker
from raymq.client import Admin, Connection
from raymq.client.bulk.coordinator_lookup import is_forgotten, request_named_broker
from raymq.cluster.elastic.cluster_client import ClusterClient
from raymq.storage.records.record import encode
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def tell(services: Services, broker: str, address: str) -> None:
    """Have the name server say that a broker, which is away, is there."""

    async def register() -> None:
        services.name_server.table.register("test", broker, 0, address, {})

    services.loop.run(register())


def test_rows_of_a_committed_write_are_not_dropped_by_whoever_has_the_address_of_its_home(
    services: Services, mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    row = encode("t", 0, b"row", b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
    sizes = np.array([len(row)], np.int32)
    poll_until(lambda: not any(broker.core.homes.unsynced_brokers() for broker in services.brokers.values()))
    poll_until(lambda: "broker-a" in services.brokers["broker-b"].core.homes.members)
    mq.run(request_named_broker(mq, "broker-a", open_write_command("w", "t", "", 0), 5.0))
    mq.run(request_named_broker(mq, "broker-b", stage_command("w", "p", 0, ("t", 0), row, sizes, "broker-a"), 5.0))
    address = services.brokers["broker-b"].address
    services.stop_broker("broker-b")
    commit = decide_write_command("w", TransactionAction.COMMIT, {"broker-b": {"p": 1}})
    assert read_transaction_reply(mq.run(request_named_broker(mq, "broker-a", commit, 5.0))).decision == "committed"
    services.stop_broker("broker-a")
    with caplog.at_level(logging.INFO, "raymq.actors.broker.in_doubt_resolver"):
        tell(services, "broker-a", address)
        services.start_broker("broker-b")
        poll_until(lambda: "broker-a, the coordinator of 1 writes, does not answer" in caplog.text)
    assert list((services.directory / "broker-b" / "raymq" / "staged").glob("*/*.chunk"))
    services.start_broker("broker-a")
    store = services.brokers["broker-b"].store
    poll_until(lambda: store.queues("t") == [0] and store.max_offset("t", 0) == 1, 30)


def test_a_broker_is_not_met_at_an_address_that_another_one_has(services: Services) -> None:
    """What the other one knows of homes is not what that broker knows: a second home could be made."""
    services.stop_broker("broker-a")
    tell(services, "broker-a", services.brokers["broker-b"].address)
    services.start_broker("broker-c")
    homes = services.brokers["broker-c"].core.homes
    poll_until(
        lambda: homes.members == ["broker-a", "broker-b", "broker-c"] and "broker-b" not in homes.unsynced_brokers()
    )
    assert homes.unsynced_brokers() == ["broker-a"]
    services.start_broker("broker-a")
    poll_until(lambda: not homes.unsynced_brokers())


def test_what_is_meant_for_another_broker_is_refused(services: Services, mq: Connection) -> None:
    address = services.brokers["broker-b"].address
    asked = mq.pool.request(address, with_target_broker("broker-a", find_coordinator_command("series", "q/t")), 5.0)
    with pytest.raises(BrokerUnavailable, match="its address now belongs to broker-b"):
        mq.run(asked)


def test_another_broker_does_not_say_what_remains_on_one_that_is_drained(
    services: Services, mq: Connection, admin: Admin
) -> None:
    """A broker that is empty would have been taken for the one that is to go."""
    address = services.brokers["broker-b"].address
    services.stop_broker("broker-a")
    tell(services, "broker-a", address)
    ground = ClusterClient(mq, "ns")
    assert mq.run(ground.remains("broker-a")) is None
    with pytest.raises(BrokerUnavailable, match="its address now belongs to broker-b"):
        mq.run(is_forgotten(mq, "broker-z"))
    tell(services, "broker-a", address)
    with pytest.raises(BrokerUnavailable, match="its address now belongs to broker-b"):
        mq.run(ground.leftovers_for_all("broker-b", ["broker-a"]))
