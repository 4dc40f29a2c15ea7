"""Test what appends that wait for one flush report when the flush fails."""

from __future__ import annotations

import asyncio

import pytest

from raymq.actors.broker.group_commit import GroupCommit
from raymq.actors.protocol import SendStatus
from raymq.storage.errors import StoreBusy, StoreError, StoreFailed, WriteUnknown


class Disk:
    """Fail flushes with these errors, one after the other."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1
        if self.errors:
            raise self.errors.pop(0)


async def test_busy_store_is_retried_until_flushed() -> None:
    disk = Disk(StoreBusy("none left"), StoreBusy("none left"))
    flush_counts: list[int] = []
    commits = GroupCommit(disk.flush, 30)
    commits.on_flushed = lambda: flush_counts.append(disk.flushes)
    assert await commits.wait() is SendStatus.SEND_OK
    assert flush_counts == [3]


async def test_long_busy_store_returns_flush_disk_timeout() -> None:
    commits = GroupCommit(Disk(*[StoreBusy("none left")] * 10_000).flush, 0.2)
    assert await commits.wait() is SendStatus.FLUSH_DISK_TIMEOUT


async def test_failed_disk_raises_write_unknown() -> None:
    with pytest.raises(WriteUnknown):
        await GroupCommit(Disk(StoreFailed("EIO")).flush, 30).wait()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
async def test_unexpected_flush_error_is_retried(error: Exception) -> None:
    """Check that `on_flushed` is called even without another append."""
    disk = Disk(error, error)
    flushed = asyncio.Event()
    commits = GroupCommit(disk.flush, 30)
    commits.on_flushed = flushed.set
    commits.request()
    await asyncio.wait_for(flushed.wait(), 10)
    assert disk.flushes == 3
    assert await commits.wait() is SendStatus.SEND_OK


async def test_closed_store_raises_store_error() -> None:
    disk = Disk(StoreError("the store is closed"))
    with pytest.raises(StoreError, match="closed"):
        await GroupCommit(disk.flush, 30).wait()
    assert disk.flushes == 1
