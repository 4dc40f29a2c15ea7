"""Test requests to an address that the name server still lists for a broker, but that another broker has now."""

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
from tests.staged_rows import open_transactions

pytestmark = pytest.mark.integration


def register_address(services: Services, broker: str, address: str) -> None:
    """Register the address of a stopped broker at the name server."""

    async def register() -> None:
        services.name_server.table.register("test", broker, 0, address, {})

    services.loop.run(register())


def test_committed_rows_survive_reuse_of_coordinator_address(
    services: Services, mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    row = encode("t", 0, b"row", b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
    sizes = np.array([len(row)], np.int32)
    poll_until(lambda: not any(broker.core.coordinators.unsynced_brokers() for broker in services.brokers.values()))
    poll_until(lambda: "broker-a" in services.brokers["broker-b"].core.coordinators.members)
    mq.run(request_named_broker(mq, "broker-a", open_write_command("w", "t", "", 0), 5.0))
    mq.run(request_named_broker(mq, "broker-b", stage_command("w", "p", 0, ("t", 0), row, sizes, "broker-a"), 5.0))
    address = services.brokers["broker-b"].address
    services.stop_broker("broker-b")
    commit = decide_write_command("w", TransactionAction.COMMIT, {"broker-b": {"p": 1}})
    assert read_transaction_reply(mq.run(request_named_broker(mq, "broker-a", commit, 5.0))).decision == "committed"
    services.stop_broker("broker-a")
    with caplog.at_level(logging.INFO, "raymq.actors.broker.staged_commits"):
        register_address(services, "broker-a", address)
        services.start_broker("broker-b")
        poll_until(lambda: "broker-a, the coordinator of 1 writes, does not answer" in caplog.text)
    assert open_transactions(services.brokers["broker-b"].store) == {"w"}
    services.start_broker("broker-a")
    store = services.brokers["broker-b"].store
    poll_until(lambda: store.queues("t") == [0] and store.max_offset("t", 0) == 1, 30)


def test_broker_at_reused_address_stays_unsynced(services: Services) -> None:
    """A sync with the wrong broker would miss coordinators, and a second one could be assigned."""
    services.stop_broker("broker-a")
    register_address(services, "broker-a", services.brokers["broker-b"].address)
    services.start_broker("broker-c")
    directory = services.brokers["broker-c"].core.coordinators
    poll_until(
        lambda: (
            directory.members == ["broker-a", "broker-b", "broker-c"] and "broker-b" not in directory.unsynced_brokers()
        )
    )
    assert directory.unsynced_brokers() == ["broker-a"]
    services.start_broker("broker-a")
    poll_until(lambda: not directory.unsynced_brokers())


def test_request_for_another_broker_is_refused(services: Services, mq: Connection) -> None:
    address = services.brokers["broker-b"].address
    call = mq.pool.request(address, with_target_broker("broker-a", find_coordinator_command("series", "q/t")), 5.0)
    with pytest.raises(BrokerUnavailable, match="its address now belongs to broker-b"):
        mq.run(call)


def test_drain_check_rejects_answer_of_another_broker(services: Services, mq: Connection, admin: Admin) -> None:
    """Otherwise an empty broker would be mistaken for the drained one."""
    address = services.brokers["broker-b"].address
    services.stop_broker("broker-a")
    register_address(services, "broker-a", address)
    ground = ClusterClient(mq, "ns")
    assert mq.run(ground.remains("broker-a")) is None
    with pytest.raises(BrokerUnavailable, match="its address now belongs to broker-b"):
        mq.run(is_forgotten(mq, "broker-z"))
    register_address(services, "broker-a", address)
    with pytest.raises(BrokerUnavailable, match="its address now belongs to broker-b"):
        mq.run(ground.leftovers_for_all("broker-b", ["broker-a"]))
