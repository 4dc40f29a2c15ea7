"""The steps that are taken for every message of a batch, compiled, where the process has them.

Everything here is also done in NumPy, with the same results; compiled it takes a fraction of the time. Storage depends
on no compiled code: the services and the client hand in what is installed (the package raymq-native), as they do with
the CRC-32. A kernel that says None or -1 leaves the case to the caller's own code: what is wrong with a record is said
in one place.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from raymq.storage.records.record import Buffer

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

#: The interface that this version knows.
INTERFACE: Final = 2


class Kernels(Protocol):
    """What raymq-native has; its own docstrings say more. Arrays are contiguous, results go into the last ones."""

    @property
    def INTERFACE(self) -> int:  # noqa: N802 - a module's constant
        """Which functions there are, and what they take."""

    def scan(
        self, records: Buffer, sizes: Int32s, check_crc: bool, places: Int64s, numbers: Int32s
    ) -> tuple[int, bytes, bool] | None:
        """Check records, find their parts."""

    def scan_one(
        self, record: Buffer, check_crc: bool, most_body: int, most_record: int
    ) -> tuple[bytes, int, int, list[int]] | None:
        """Check one record; its topic, queue id, tags code and the index hashes of its keys."""

    def record_sizes(self, content: Buffer, place: int, sizes: Int32s) -> int:
        """The sizes of whole records, one behind the other; how many. Not in the first ones of this interface."""

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
        """Tags codes and key hashes of one topic's records; how many keys."""

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
        """Copy records with what the store knows, but for the first four bytes."""

    def put_keys(
        self,
        slots: memoryview,
        entries: memoryview,
        number: int,
        hashes: Int32s,
        physical_offsets: Int64s,
        seconds: Int32s,
    ) -> int:
        """Keys into an index file; how many slots were empty."""

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
        """A record's keys into an index file; how many slots were empty."""

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
        """Records out of columns."""

    def join_lists(
        self,
        header: bytes,
        topic: bytes,
        key: bytes,
        numbers: list[str | int],
        bodies: list[bytes],
        properties: list[bytes],
        sizes: Int32s,
    ) -> bytearray | None:
        """Records out of lists."""

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
        """One record."""

    def checksums(self, data: Buffer, starts: Int64s, lengths: Int64s, result: npt.NDArray[np.uint32]) -> None:
        """The CRC-32 of slices."""

    def gather(self, data: Buffer, starts: Int64s, ends: Int64s, offsets: Int32s, result: memoryview) -> None:
        """Slices, one behind the other."""

    def gather_bodies(
        self,
        records: Buffer,
        starts: Int64s,
        body_at: Int64s,
        lengths: Int64s,
        offsets: Int32s,
        result: memoryview,
    ) -> int:
        """Bodies, one behind the other; the first one of another CRC."""

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
        """What headers say."""

    def common_properties(
        self,
        records: Buffer,
        properties_at: Int64s,
        ends: Int64s,
        names: list[bytes],
        begins: Int64s,
        stops: Int64s,
    ) -> bool:
        """Where the values of properties lie that all records have in the same order."""

    def bodies(self, records: Buffer, starts: Int64s, body_at: Int64s, lengths: Int64s) -> tuple[list[bytes], int]:
        """Bodies, and the first one of another CRC."""

    def filled(
        self,
        kind: type,
        names: tuple[str, str, str, str],
        column: list[bytes],
        second: object,
        third: Int64s,
        fourth: object,
    ) -> list[Any]:
        """Objects with four slots filled."""

    def untrack(self, made: object) -> None:
        """Have the garbage collector not look at an object."""

    def track(self, made: object) -> None:
        """End that."""


#: What is in use; look it up at each use.
kernels: Kernels | None = None


def use(native: Kernels | None) -> None:
    """Take `native` for what this process does from now on; None = NumPy.

    Raises:
        ValueError: it has another interface.
    """
    global kernels  # noqa: PLW0603 - it is the process's choice
    if native is not None and native.INTERFACE != INTERFACE:
        raise ValueError(f"raymq-native has interface {native.INTERFACE}, this version of raymq needs {INTERFACE}")
    kernels = native


def as_bytes(buffer: Any) -> memoryview:
    """A buffer as unsigned bytes: Arrow's say that theirs are signed."""
    return memoryview(buffer).cast("B")
