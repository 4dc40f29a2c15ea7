"""Read the records that a pop delivers.

New messages are read as they lie in the log. Redelivered messages are stamped with their reconsume times.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from raymq.actors.broker.core.copies.republisher import rejection_reason
from raymq.actors.broker.core.pop.pop_request import PoppedRecords
from raymq.actors.broker.core.reading.filtered_reader import ScanBudget, read_filtered
from raymq.actors.broker.core.redelivery.retry import clamp_reconsume_times
from raymq.actors.filter.tag_expression import MessageFilter
from raymq.storage.errors import OffsetOutOfRange, QueueNotFound
from raymq.storage.records import record as layout
from raymq.storage.records.record import Buffer
from raymq.storage.store import Store

_INT = struct.Struct(">i")


def read_new(
    store: Store,
    topic: str,
    queue_id: int,
    offset: int,
    room: int,
    space_bytes: int,
    message_filter: MessageFilter,
    into: PoppedRecords,
    scan: ScanBudget,
) -> int:
    """Add records from `offset` on to `into`, within `scan`; return the next offset.

    Raises:
        StoreCorrupt: the record at `offset` is damaged.
    """
    try:
        lease = read_filtered(store, topic, queue_id, offset, room, space_bytes, message_filter, scan=scan)
    except QueueNotFound:  # nothing was ever written there
        return offset
    with lease:
        if into.offsets and int(lease.sizes.sum()) > space_bytes:
            return offset
        into.offsets += lease.queue_offsets.tolist()
        into.pieces += lease.parts
        into.size_bytes += int(lease.sizes.sum())
        sizes = iter(lease.sizes.tolist())
        for part in lease.parts:
            at = 0
            while at < len(part):
                into.reconsume_times.append(clamp_reconsume_times(_INT.unpack_from(part, at + _times_at(part, at))[0]))
                at += next(sizes)
        return lease.next_offset


def read_redelivered(
    store: Store, topic: str, queue_id: int, times: dict[int, int], space_bytes: int, into: PoppedRecords
) -> tuple[list[int], list[int], dict[int, str]]:
    """Add the records at some offsets to `into`, stamped with new reconsume times.

    Args:
        times: reconsume times by offset, ascending.

    Returns:
        The offsets that were not read: those whose messages are gone for good, those to be tried another time because
        the space is used up, and those that cannot be read, with the reason for each.
    """
    lost: list[int] = []
    unreadable: dict[int, str] = {}
    offsets = list(times)
    while offsets:
        run = _first_run(offsets)
        try:
            passed = _read_run(store, topic, queue_id, run, times, space_bytes - into.size_bytes, into)
        except (OffsetOutOfRange, QueueNotFound):
            passed = 0
        except Exception as error:  # noqa: BLE001 - an error of a stored message concerns that message only
            unreadable[run[0]] = rejection_reason(error)
            passed = 1
        if passed is None:
            break
        if not passed:
            lost.append(run[0])
        offsets = offsets[max(1, passed) :]
    return lost, offsets, unreadable


def _read_run(
    store: Store,
    topic: str,
    queue_id: int,
    run: list[int],
    times: dict[int, int],
    space_bytes: int,
    into: PoppedRecords,
) -> int | None:
    """Add the records at consecutive offsets to `into`, stamped.

    Returns:
        How many were read from the first on; None if the first record exists but does not fit beside the others.
    """
    with store.read(topic, queue_id, run[0], len(run), space_bytes) as lease:
        if not len(lease):
            return 0
        if into.offsets and len(lease.records) > space_bytes:
            return None
        records = bytearray(lease.records)
        sizes = lease.sizes.tolist()
    read = run[: len(sizes)]
    at = 0
    for offset, size in zip(read, sizes, strict=True):
        _INT.pack_into(records, at + _times_at(records, at), times[offset])
        at += size
    into.offsets += read
    into.reconsume_times += [times[offset] for offset in read]
    into.pieces.append(records)
    into.size_bytes += len(records)
    return len(read)


def _times_at(buffer: Buffer, at: int) -> int:
    """Return where the reconsume times are within the record at `at`."""
    (sys_flag,) = _INT.unpack_from(buffer, at + layout.OFFSET_SYS_FLAG)
    ipv6_hosts = bool(sys_flag & layout.SYS_FLAG_BORN_IPV6) + bool(sys_flag & layout.SYS_FLAG_STORE_IPV6)
    return layout.OFFSET_RECONSUME_TIMES + ipv6_hosts * layout.IPV6_SHIFT


def _first_run(offsets: Sequence[int]) -> list[int]:
    """Return the leading consecutive numbers of an ascending sequence."""
    length = next((i for i in range(1, len(offsets)) if offsets[i] != offsets[i - 1] + 1), len(offsets))
    return list(offsets[:length])
