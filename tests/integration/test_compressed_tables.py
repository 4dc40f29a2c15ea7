"""Test that messages compressed by producers are read completely, in tables of bounded size."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from raymq.actors.wire.headers.send_headers import SendMessage
from raymq.client import Admin, Connection, MessageQueue, PullConsumer
from raymq.client.bulk.range_reader import RangeReader
from raymq.storage.records.record import encode_properties
from tests.broker_process import BrokerProcess
from tests.integration.foreign_client import ForeignClient

TEXT = bytes(16 << 20)


@pytest.mark.timeout(120)
def test_compressed_messages_are_read_in_bounded_tables(tmp_path: Path) -> None:
    process = BrokerProcess("broker-a", tmp_path)
    queue = MessageQueue("t", "broker-a", 0)
    with Connection([process.name_server]) as mq, PullConsumer(mq, "g") as consumer:
        Admin(mq).create_topic("t", queues=1)
        (broker,) = Admin(mq).cluster_info().brokers
        assert broker.address is not None
        body = zlib.compress(TEXT, 9)
        with ForeignClient(broker.address) as client:
            for number in range(10):
                properties = encode_properties({"n": str(number)}).decode()
                client.done(SendMessage("p", "t", "TBW102", 4, 0, 0x1, 1, 0, properties).command(body))
        rows: list[int] = []
        while (table := consumer.fetch_table(queue, timeout=0.5)).num_rows:
            rows.append(table.num_rows)
            assert consumer.position(queue) == sum(rows)
        assert rows == [4, 4, 2]
        with RangeReader((process.name_server,), None) as reader:
            tables = [table.num_rows for table in reader.table(queue, 1, 10)]
        assert tables == [4, 4, 1]
    process.stop()
