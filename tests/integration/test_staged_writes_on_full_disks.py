"""Test commits while a disk is full: all rows become visible or none, and errors say which."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from raymq.client import Admin, Connection
from raymq.client.bulk import staged_write
from raymq.client.bulk.staged_write import CommittedWrite
from raymq.client.errors import InvalidInput, OutcomeUnknown, StoreFull
from raymq.storage.files.file_calls import FileCalls, replaced
from tests.integration.conftest import Services
from tests.integration.test_staged_writes import BROKERS, count_stored, open_write, stage
from tests.polling import poll_until
from tests.staged_rows import open_transactions

pytestmark = pytest.mark.integration


class FullState(FileCalls):
    """Refuse to write to the state journal below `root`."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "raymq" / "state"

    def write(self, fd: int, content: bytes | memoryview) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(self._folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, content)


def test_full_broker_applies_rows_when_disk_has_room(services: Services, mq: Connection, admin: Admin) -> None:
    write = open_write(mq)
    parts = stage(mq, write)
    (full,) = BROKERS - {write.coordinator}
    with replaced(FullState(services.brokers[full].store.directory)):
        with pytest.raises(OutcomeUnknown, match="do not repeat") as caught:
            write.commit(parts)
        assert caught.value.committed
        assert services.brokers[full].core.bounds("t", 0) == (0, 0)
        assert services.brokers[write.coordinator].core.bounds("t", 0) == (0, 10)
    poll_until(lambda: count_stored(services) == 20, 30)
    assert staged_write.finish(mq, write.transaction) == CommittedWrite(write.transaction, 20)
    assert count_stored(services) == 20


def test_full_coordinator_refuses_commit_and_stores_no_rows(services: Services, mq: Connection, admin: Admin) -> None:
    write = open_write(mq)
    parts = stage(mq, write)
    with replaced(FullState(services.brokers[write.coordinator].store.directory)), pytest.raises(StoreFull):
        write.commit(parts)
    assert count_stored(services) == 0
    with pytest.raises(InvalidInput, match="abort_write"):
        staged_write.finish(mq, write.transaction)
    staged_write.abort(mq, write.transaction)
    for broker in services.brokers.values():
        poll_until(lambda store=broker.store: write.transaction not in open_transactions(store), 30)
    assert count_stored(services) == 0
