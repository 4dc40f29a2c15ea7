"""A write of which staged rows are lost is not told as written: not by its commit, nor by who asks later."""

from __future__ import annotations

from pathlib import Path

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
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

BROKERS = ("broker-a", "broker-b")


def staged(services: Services, mq: Connection, number: int = 0) -> StagedWrite:
    """A write of ten rows on each broker."""
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
                writer.stage(opened.transaction, "p", place, queue, b"".join(rows), sizes, home=opened.home)
    return opened


def chunks(services: Services, broker: str, transaction: str) -> list[Path]:
    return sorted((services.directory / broker / "raymq" / "staged" / transaction).glob("*.chunk"))


def commit(write: StagedWrite) -> CommittedWrite:
    return write.commit([("p", broker, 10) for broker in BROKERS])


def ends(admin: Admin) -> int:
    return sum(stats.max_offset for stats in admin.topic_stats("t").values())


@pytest.mark.parametrize("all_of_them", [False, True])
def test_rows_that_are_lost_are_told_by_the_commit_and_by_who_asks_later(
    services: Services, mq: Connection, admin: Admin, *, all_of_them: bool
) -> None:
    write = staged(services, mq)
    for path in chunks(services, "broker-b", write.transaction)[0 if all_of_them else 1 :]:
        path.write_bytes(bytes(50))
    missing = 10 if all_of_them else 5
    with pytest.raises(WriteIncomplete, match="broker-b") as raised:
        commit(write)
    first = raised.value
    assert (first.transaction, first.rows, first.missing) == (write.transaction, 20 - missing, missing)
    assert list(first.reasons) == ["broker-b"]
    assert ends(admin) == 20 - missing
    home = services.brokers[write.home].core.writes
    poll_until(
        lambda: (record := home.transaction_status(write.transaction).record) is not None and not record.unfinished
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
        # The batch is run again: it is not written again, and is not told as written either.
        with pytest.raises(WriteIncomplete, match=write.transaction):
            StagedWrite.open(another, "t", BROKERS, series="query/t/", number=0)
        assert commit(staged(services, another, number=1)).rows == 20
        # Its writer may do without them: from then on the write counts as whole, also in a later life of its home.
        assert staged_write.accept(another, write.transaction).rows == first.rows
        services.stop_broker(write.home)
        services.start_broker(write.home)
        assert staged_write.finish(another, write.transaction).rows == first.rows
        assert isinstance(StagedWrite.open(another, "t", BROKERS, series="query/t/", number=0), CommittedWrite)
    assert ends(admin) == 40 - missing


def test_rows_for_a_home_that_is_no_broker_are_not_taken(services: Services, mq: Connection, admin: Admin) -> None:
    """Nobody would ever decide about them."""
    row = encode("t", 0, b"row", b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
    sizes = np.array([len(row)], np.int32)
    for home, error in (("ghost", BrokerUnavailable), ("", InvalidInput), ("a/b", InvalidInput)):
        with pytest.raises(error):
            mq.run(
                request_named_broker(mq, "broker-a", stage_command("write", "p", 0, ("t", 0), row, sizes, home), 5.0)
            )
    assert not (services.directory / "broker-a" / "raymq" / "staged").exists()


def test_rows_that_are_lost_after_others_were_accepted_are_told(
    services: Services, mq: Connection, admin: Admin
) -> None:
    write = staged(services, mq)
    for path in chunks(services, "broker-b", write.transaction)[1:]:
        path.write_bytes(bytes(50))
    with pytest.raises(WriteIncomplete):
        commit(write)
    home = services.brokers[write.home].core.writes
    poll_until(
        lambda: (record := home.transaction_status(write.transaction).record) is not None and not record.unfinished
    )
    record = home.accept_missing(write.transaction, {"broker-b": 4, "ghost": 7}).record
    assert record is not None
    assert record.accepted == {"broker-b": 4}
    with pytest.raises(WriteIncomplete) as raised:
        staged_write.finish(mq, write.transaction)
    assert raised.value.missing == 5
    assert staged_write.accept(mq, write.transaction).rows == 15
    with pytest.raises(InvalidInput):
        staged_write.accept(mq, "nobody-knows-it")


def test_a_broker_that_lost_all_of_its_disk_has_lost_its_rows(services: Services, mq: Connection, admin: Admin) -> None:
    write = staged(services, mq)
    lost = "broker-a" if write.home == "broker-b" else "broker-b"
    services.stop_broker(lost)
    folder = services.directory / lost / "raymq" / "staged"
    kept = folder.rename(folder.with_name("elsewhere"))
    services.start_broker(lost)
    for _ in range(2):
        with pytest.raises(WriteIncomplete) as raised:
            commit(write)
        assert (raised.value.rows, raised.value.missing, list(raised.value.reasons)) == (10, 10, [lost])
    assert not folder.exists()
    assert staged_write.accept(mq, write.transaction).rows == 10
    assert staged_write.accept(mq, write.transaction).rows == 10
    services.stop_broker(lost)
    kept.rename(folder)  # it was found again
    services.start_broker(lost)
    assert staged_write.finish(mq, write.transaction).rows == 20
    assert ends(admin) == 20
