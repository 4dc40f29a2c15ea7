"""Reading what a pop delivers: new messages as they lie in the log, and such as come again, stamped with how often."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from raymq.actors.broker.core.copies.copying import reason_of
from raymq.actors.broker.core.pop.request import Taken
from raymq.actors.broker.core.reading.filtered_reading import Scan, read_filtered
from raymq.actors.broker.core.redelivery.retry import counted
from raymq.actors.filter.subscription import Filter
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
    wanted: Filter,
    into: Taken,
    scan: Scan,
) -> int:
    """Add records from `offset` on to `into`, as far as `scan` allows; the offset to go on from.

    Raises:
        StoreCorrupt: the record at `offset` is damaged.
    """
    try:
        lease = read_filtered(store, topic, queue_id, offset, room, space_bytes, wanted, scan=scan)
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
                into.reconsume_times.append(counted(_INT.unpack_from(part, at + _times_at(part, at))[0]))
                at += next(sizes)
        return lease.next_offset


def read_again(
    store: Store, topic: str, queue_id: int, times: dict[int, int], space_bytes: int, into: Taken
) -> tuple[list[int], list[int], dict[int, str]]:
    """Add the records of some offsets to `into`, each stamped with its new reconsume times.

    Args:
        times: reconsume times by offset, ascending.

    Returns:
        The offsets that were not read: those that are gone for good, those to be tried another time, as the space is
        used up, and those that cannot be read, with what is wrong with each.
    """
    gone: list[int] = []
    unreadable: dict[int, str] = {}
    offsets = list(times)
    while offsets:
        run = _first_run(offsets)
        try:
            passed = _read_run(store, topic, queue_id, run, times, space_bytes - into.size_bytes, into)
        except (OffsetOutOfRange, QueueNotFound):
            passed = 0
        except Exception as error:  # noqa: BLE001 - whatever a stored byte causes is that message's outcome
            unreadable[run[0]] = reason_of(error)
            passed = 1
        if passed is None:
            break
        if not passed:
            gone.append(run[0])
        offsets = offsets[max(1, passed) :]
    return gone, offsets, unreadable


def _read_run(
    store: Store, topic: str, queue_id: int, run: list[int], times: dict[int, int], space_bytes: int, into: Taken
) -> int | None:
    """Add the records of consecutive offsets to `into`, stamped.

    Returns:
        How many were read from the first on; None if there is one, but no space for it beside the others.
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
    """Where within the record at `at` its reconsume times are."""
    (sys_flag,) = _INT.unpack_from(buffer, at + layout.OFFSET_SYS_FLAG)
    ipv6_hosts = bool(sys_flag & layout.SYS_FLAG_BORN_IPV6) + bool(sys_flag & layout.SYS_FLAG_STORE_IPV6)
    return layout.OFFSET_RECONSUME_TIMES + ipv6_hosts * layout.IPV6_SHIFT


def _first_run(offsets: Sequence[int]) -> list[int]:
    """Ascending numbers up to where one is missing."""
    length = next((i for i in range(1, len(offsets)) if offsets[i] != offsets[i - 1] + 1), len(offsets))
    return list(offsets[:length])
