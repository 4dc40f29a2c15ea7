"""Test that a staged write with lost rows is reported as incomplete, by its commit and afterwards."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.staged_write_commands import stage_command
from raymq.client import Admin, Connection
from raymq.client.bulk import staged_write
from raymq.client.bulk.coordinator_lookup import request_named_broker
from raymq.client.bulk.staged_write import CommittedWrite, StagedWrite
from raymq.client.bulk.staged_writer import StagedWriter
from raymq.client.errors import BrokerUnavailable, InvalidInput, WriteIncomplete
from raymq.storage.records.record import encode
from tests import staged_rows
from tests.integration.conftest import Services
from tests.polling import poll_until
from tests.staged_rows import cut_header

pytestmark = pytest.mark.integration

BROKERS = ("broker-a", "broker-b")


def stage_write(services: Services, mq: Connection, number: int = 0) -> StagedWrite:
    """Stage a write of ten rows on each broker."""
    opened = StagedWrite.open(mq, "t", BROKERS, series="query/t/", number=number)
    assert isinstance(opened, StagedWrite)
    with StagedWriter([services.name_server.address]) as writer:
        for broker in BROKERS:
            for place in range(2):
                rows = [
                    encode("t", 0, b"%d %d" % (place, each), b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
                    for each in range(5)
                ]
                sizes = np.array([len(each) for each in rows], np.int32)
                queue = MessageQueue("t", broker, 0)
                staged_rows.send_chunk(writer, opened, "p", place, queue, b"".join(rows), sizes)
    return opened


def damage_chunks(services: Services, transaction: str, first: int) -> None:
    for number in range(first, 2):
        cut_header(services.brokers["broker-b"].store, transaction, "p", number)


def commit(write: StagedWrite) -> CommittedWrite:
    return write.commit([("p", broker, 10) for broker in BROKERS])


def count_messages(admin: Admin) -> int:
    return sum(stats.max_offset for stats in admin.topic_stats("t").values())


@pytest.mark.parametrize("all_of_them", [False, True])
def test_lost_rows_are_reported_by_commit_and_finish(
    services: Services, mq: Connection, admin: Admin, *, all_of_them: bool
) -> None:
    write = stage_write(services, mq)
    damage_chunks(services, write.transaction, 0 if all_of_them else 1)
    missing = 10 if all_of_them else 5
    with pytest.raises(WriteIncomplete, match="broker-b") as raised:
        commit(write)
    first = raised.value
    assert (first.transaction, first.rows, first.missing) == (write.transaction, 20 - missing, missing)
    assert list(first.reasons) == ["broker-b"]
    assert count_messages(admin) == 20 - missing
    coordinator = services.brokers[write.coordinator].core.writes
    poll_until(
        lambda: (
            (record := coordinator.transaction_status(write.transaction).record) is not None and not record.unfinished
        )
    )
    for broker in BROKERS:
        services.stop_broker(broker)
        services.start_broker(broker)
    with Connection([services.name_server.address]) as another:
        for _ in range(2):
            with pytest.raises(WriteIncomplete) as again:
                staged_write.finish(another, write.transaction)
            assert (again.value.rows, again.value.missing) == (first.rows, first.missing)
            assert again.value.reasons == first.reasons
        # A rerun of the batch neither writes it again nor reports it as written.
        with pytest.raises(WriteIncomplete, match=write.transaction):
            StagedWrite.open(another, "t", BROKERS, series="query/t/", number=0)
        assert commit(stage_write(services, another, number=1)).rows == 20
        # The writer may accept the loss: then the write counts as complete, also after a restart of its coordinator.
        assert staged_write.accept(another, write.transaction).rows == first.rows
        services.stop_broker(write.coordinator)
        services.start_broker(write.coordinator)
        assert staged_write.finish(another, write.transaction).rows == first.rows
        assert isinstance(StagedWrite.open(another, "t", BROKERS, series="query/t/", number=0), CommittedWrite)
    assert count_messages(admin) == 40 - missing


def test_rows_for_unknown_coordinator_are_refused(services: Services, mq: Connection, admin: Admin) -> None:
    """No broker would ever decide about such rows."""
    row = encode("t", 0, b"row", b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
    sizes = np.array([len(row)], np.int32)
    for coordinator, error in (("ghost", BrokerUnavailable), ("", InvalidInput), ("a/b", InvalidInput)):
        with pytest.raises(error):
            mq.run(
                request_named_broker(
                    mq, "broker-a", stage_command("write", "p", 0, ("t", 0), row, sizes, coordinator), 5.0
                )
            )
    assert services.brokers["broker-a"].store.tables.staged.transactions() == []


def test_rows_lost_after_acceptance_are_reported(services: Services, mq: Connection, admin: Admin) -> None:
    write = stage_write(services, mq)
    damage_chunks(services, write.transaction, 1)
    with pytest.raises(WriteIncomplete):
        commit(write)
    coordinator = services.brokers[write.coordinator].core.writes
    poll_until(
        lambda: (
            (record := coordinator.transaction_status(write.transaction).record) is not None and not record.unfinished
        )
    )
    record = coordinator.accept_missing(write.transaction, {"broker-b": 4, "ghost": 7}).record
    assert record is not None
    assert record.accepted == {"broker-b": 4}
    with pytest.raises(WriteIncomplete) as raised:
        staged_write.finish(mq, write.transaction)
    assert raised.value.missing == 5
    assert staged_write.accept(mq, write.transaction).rows == 15
    with pytest.raises(InvalidInput):
        staged_write.accept(mq, "nobody-knows-it")


def test_rows_of_broker_with_lost_disk_are_missing(services: Services, mq: Connection, admin: Admin) -> None:
    write = stage_write(services, mq)
    lost = "broker-a" if write.coordinator == "broker-b" else "broker-b"
    services.stop_broker(lost)
    folder = services.directory / lost / "raymq" / "state"
    kept = folder.rename(folder.with_name("elsewhere"))
    services.start_broker(lost)
    for _ in range(2):
        with pytest.raises(WriteIncomplete) as raised:
            commit(write)
        assert (raised.value.rows, raised.value.missing, list(raised.value.reasons)) == (10, 10, [lost])
    assert staged_write.accept(mq, write.transaction).rows == 10
    assert staged_write.accept(mq, write.transaction).rows == 10
    services.stop_broker(lost)
    shutil.rmtree(folder)
    kept.rename(folder)  # the rows are found again
    services.start_broker(lost)
    assert staged_write.finish(mq, write.transaction).rows == 20
    assert count_messages(admin) == 20
