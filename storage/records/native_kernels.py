"""The interface of compiled code for the steps that run for every message.

NumPy code does the same with the same results; compiled code takes a fraction of the time. The storage package does not
depend on compiled code: the services and the client install the package raymq-native with `use`, as they do with the
CRC-32. A kernel that returns None or -1 leaves the case to the caller's own code, so that the errors of a record are
described in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from raymq.storage.records.record import Buffer

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

#: The version of the interface that this version of raymq supports.
INTERFACE: Final = 4


class Kernels(Protocol):
    """The functions of raymq-native; their own docstrings say more.

    Arrays are contiguous. Results are written to the last array arguments.
    """

    @property
    def INTERFACE(self) -> int:  # noqa: N802 - a module's constant
        """Return the version of the interface: which functions exist, and their arguments."""

    #: The base classes of messages, of their batches and results, and the open batches of a producer.
    MessageFields: type[Any]
    BatchFields: type[Any]
    PendingFields: type[Any]
    OpenBatches: type[Any]

    def scan(
        self, records: Buffer, sizes: Int32s, check_crc: bool, places: Int64s, numbers: Int32s
    ) -> tuple[int, bytes, bool] | None:
        """Check records and find their parts."""

    def scan_one(
        self, record: Buffer, check_crc: bool, most_body: int, most_record: int
    ) -> tuple[bytes, int, int, list[int]] | None:
        """Check one record and return its topic, queue id, tags code and key hashes."""

    def record_sizes(self, content: Buffer, place: int, sizes: Int32s) -> int:
        """Write the sizes of contiguous whole records to `sizes` and return their number."""

    def derive(
        self,
        records: Buffer,
        properties_at: Int64s,
        ends: Int64s,
        topic_hash: int,
        tags_codes: Int64s,
        key_hashes: Int32s,
        key_owners: Int64s,
    ) -> int:
        """Derive tags codes and key hashes of one topic's records; return the number of keys."""

    def stamp(
        self,
        target: memoryview,
        records: Buffer,
        starts: Int64s,
        sys_flags: Int32s,
        queue_offsets: Int64s,
        physical_offset: int,
        store_timestamp_ms: int,
        store_host: int,
    ) -> None:
        """Copy records with the fields that the store sets, except for the first four bytes."""

    def put_keys(
        self,
        slots: memoryview,
        entries: memoryview,
        number: int,
        hashes: Int32s,
        physical_offsets: Int64s,
        seconds: Int32s,
    ) -> int:
        """Put keys into an index file and return how many slots were empty."""

    def put_few(
        self,
        file: memoryview,
        slots_at: int,
        entries_at: int,
        size: int,
        number: int,
        hashes: list[int],
        physical_offset: int,
        seconds: int,
    ) -> int:
        """Put one record's keys into an index file; return how many slots were empty."""

    def join_columns(
        self,
        header: bytes,
        topic: bytes,
        key: bytes,
        numbers: Int64s,
        body_offsets: Int32s,
        bodies: Buffer,
        property_offsets: Int32s | None,
        properties: Buffer | None,
        sizes: Int32s,
    ) -> bytearray | None:
        """Encode records from columns."""

    def join_messages(
        self, header: bytes, topic: bytes, key: bytes, messages: list[Any], sizes: Int32s
    ) -> bytearray | None:
        """Encode records of messages with numbers."""

    def number_messages(self, messages: list[Any], first: int) -> Sequence[str | int]:
        """Give messages without a unique key the next numbers.

        Return the keys or numbers of all.
        """

    def join_one(
        self,
        header: bytes,
        topic: bytes,
        key: bytes,
        number: int,
        body: bytes,
        properties: bytes,
        born_timestamp_ms: int,
    ) -> bytearray | None:
        """Encode one record."""

    def checksums(self, data: Buffer, starts: Int64s, lengths: Int64s, result: npt.NDArray[np.uint32]) -> None:
        """Write the CRC-32 of each slice to `result`."""

    def gather(self, data: Buffer, starts: Int64s, ends: Int64s, offsets: Int32s, result: memoryview) -> None:
        """Copy slices to `result`, one after the other."""

    def gather_bodies(
        self,
        records: Buffer,
        starts: Int64s,
        body_at: Int64s,
        lengths: Int64s,
        offsets: Int32s,
        result: memoryview,
    ) -> int:
        """Copy bodies to `result`; return the index of the first body with a wrong CRC.

        The result is negative if every CRC is right.
        """

    def heads(
        self,
        records: Buffer,
        starts: Int64s,
        sys_flags: Int32s,
        queue_ids: Int32s,
        queue_offsets: Int64s,
        born_us: Int64s,
        stored_us: Int64s,
        ids: npt.NDArray[np.uint8],
    ) -> None:
        """Write the header fields of records to arrays."""

    def common_properties(
        self,
        records: Buffer,
        properties_at: Int64s,
        ends: Int64s,
        names: list[bytes],
        begins: Int64s,
        stops: Int64s,
    ) -> bool:
        """Find the values of properties that all records have in the same order.

        `begins` and `stops` receive the positions of the values. Return False if the records differ in their
        properties.
        """

    def bodies(self, records: Buffer, starts: Int64s, body_at: Int64s, lengths: Int64s) -> tuple[list[bytes], int]:
        """Return the bodies, and the index of the first body with a wrong CRC."""

    def filled(
        self,
        kind: type,
        names: tuple[str, str, str, str],
        column: list[bytes],
        second: object,
        third: Int64s,
        fourth: object,
    ) -> list[Any]:
        """Return new objects of `kind` with four slots filled."""

    def untrack(self, value: object) -> None:
        """Exclude an object from the garbage collector."""

    def track(self, value: object) -> None:
        """Include an object in the garbage collector again."""


#: The kernels in use. Look them up at each use, because `use` replaces them.
kernels: Kernels | None = None


def use(native: Kernels | None) -> None:
    """Use `native` in this process from now on; None = NumPy.

    Raises:
        ValueError: `native` has another version of the interface.
    """
    global kernels  # noqa: PLW0603 - one choice for the process
    if native is not None and native.INTERFACE != INTERFACE:
        raise ValueError(f"raymq-native has interface {native.INTERFACE}, this version of raymq needs {INTERFACE}")
    kernels = native


def as_bytes(buffer: Any) -> memoryview:
    """Return a buffer as unsigned bytes; Arrow's buffers declare signed bytes."""
    return memoryview(buffer).cast("B")
