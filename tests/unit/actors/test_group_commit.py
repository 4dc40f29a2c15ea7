"""Appends that wait for one flush: what they are told when it cannot be done yet."""

from __future__ import annotations

import asyncio

import pytest

from raymq.actors.broker.group_commit import GroupCommit
from raymq.actors.protocol import SendStatus
from raymq.storage.errors import StoreBusy, StoreError, StoreFailed, WriteUnknown


class Disk:
    """Flushes that fail, one after the other, with these errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1
        if self.errors:
            raise self.errors.pop(0)


async def test_a_lack_of_descriptors_is_no_refusal_of_what_is_stored() -> None:
    disk = Disk(StoreBusy("none left"), StoreBusy("none left"))
    told: list[int] = []
    commits = GroupCommit(disk.flush, 30)
    commits.on_flushed = lambda: told.append(disk.flushes)
    assert await commits.wait() is SendStatus.SEND_OK
    assert told == [3]


async def test_who_waits_too_long_for_descriptors_is_told_that_it_is_not_on_disk_yet() -> None:
    commits = GroupCommit(Disk(*[StoreBusy("none left")] * 10_000).flush, 0.2)
    assert await commits.wait() is SendStatus.FLUSH_DISK_TIMEOUT


async def test_a_disk_that_fails_leaves_it_unknown() -> None:
    with pytest.raises(WriteUnknown):
        await GroupCommit(Disk(StoreFailed("EIO")).flush, 30).wait()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
async def test_who_waits_is_told_whatever_a_flush_has_failed_by(error: Exception) -> None:
    """Also who waits for arrivals: there need not be another append that would have it flushed."""
    disk = Disk(error, error)
    flushed = asyncio.Event()
    commits = GroupCommit(disk.flush, 30)
    commits.on_flushed = flushed.set
    commits.request()
    await asyncio.wait_for(flushed.wait(), 10)
    assert disk.flushes == 3
    assert await commits.wait() is SendStatus.SEND_OK


async def test_a_store_that_is_closed_ends_it() -> None:
    disk = Disk(StoreError("the store is closed"))
    with pytest.raises(StoreError, match="closed"):
        await GroupCommit(disk.flush, 30).wait()
    assert disk.flushes == 1
