"""Test that a connection closes its outboxes in parallel."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from raymq.client import Connection, Producer
from raymq.client.produce import outbox_file
from raymq.client.produce.outbox_file import OutboxFile


def test_connection_closes_outboxes_in_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In sequence, each outbox locked by another process cost five seconds."""
    mq = Connection(["127.0.0.1:1"])
    producers = [Producer(mq, "p", outbox=tmp_path / f"{number}.db") for number in range(3)]
    together, close, met = threading.Barrier(3), OutboxFile.close, []

    def waiting(file: OutboxFile) -> None:
        met.append(together.wait(4))
        close(file)

    monkeypatch.setattr(outbox_file.OutboxFile, "close", waiting)
    mq.close()
    assert sorted(met) == [0, 1, 2]
    assert len(producers) == 3
    for number in range(3):
        assert OutboxFile(tmp_path / f"{number}.db", read_only=True).batches() == []


def test_outbox_may_be_closed_twice(tmp_path: Path) -> None:
    mq = Connection(["127.0.0.1:1"])
    producer = Producer(mq, "p", outbox=tmp_path / "a.db")
    producer.begin_close(1.0)
    producer.close()
    producer.close()
    mq.close()
