"""The settings of one store directory."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

from raymq.storage import delay_levels
from raymq.storage.errors import InvalidInput
from raymq.storage.records.limits import DEFAULT_MESSAGE_BYTES, MOST_BESIDE_BODY, MOST_MESSAGE_BYTES

#: The largest value of each whole number. A file's size is an int of RocketMQ, which may open the directory.
_MOST = {
    "flush_interval_ms": 1 << 31,
    "flush_least_pages": 1 << 31,
    "commitlog_file_bytes": (1 << 31) - 1,
    "consume_queue_file_entries": ((1 << 31) - 1) // 20,
    "index_slots": 1 << 30,
    "index_entries": 1 << 30,
    "max_message_bytes": MOST_MESSAGE_BYTES,
}
#: A hundred years.
MOST_HOURS = 876_600


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of a store; sizes of files that exist already win over those given here.

    Attributes:
        flush: "async" leaves fdatasync to the background; "sync" says that the broker awaits it for each answer.
        flush_interval_ms: how often the background looks whether there is something to flush.
        flush_least_pages: dirty pages of 4 KiB below which the background waits (at most 10 s).
        commitlog_file_bytes: size of a commit log file.
        consume_queue_file_entries: entries of 20 bytes in a consume queue file.
        index_slots: hash slots of an index file.
        index_entries: entries of an index file (entry 0 stays unused).
        delay_levels: the table of delay levels.
        max_message_bytes: largest body; above the default a commit log file has to hold its record.
        retention_hours: age at which commit log files may be deleted.
        delete_at_hour: hour of the day at which that happens, "*" = any.
        disk_refuse_ratio: used share of the disk from which on appends are refused.
        max_auto_groups: with so many consumer groups, one that nobody created is not made any more by who names it.
        max_auto_topics: the same of topics, and who sends to them.
        store_host: the broker's numeric IPv4 address and port, stamped into each record.

    Raises:
        InvalidInput: a value that cannot be.
    """

    flush: Literal["async", "sync"] = "async"
    flush_interval_ms: int = 500
    flush_least_pages: int = 4
    commitlog_file_bytes: int = 1 << 30
    consume_queue_file_entries: int = 300_000
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    max_message_bytes: int = DEFAULT_MESSAGE_BYTES
    retention_hours: float = 72.0
    delete_at_hour: str = "04"
    disk_refuse_ratio: float = 0.90
    max_auto_groups: int = 10_000
    max_auto_topics: int = 20_000
    store_host: str = "127.0.0.1:10911"

    def __post_init__(self) -> None:
        if self.flush not in ("async", "sync"):
            raise InvalidInput("flush", '"async" or "sync"', self.flush)
        at_least = {
            "flush_interval_ms": 1,
            "flush_least_pages": 0,
            "commitlog_file_bytes": 256,
            "consume_queue_file_entries": 1,
            "index_slots": 1,
            "index_entries": 2,
            "max_message_bytes": 1,
            "max_auto_groups": 0,
            "max_auto_topics": 0,
        }
        for field, least in at_least.items():
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidInput(field, f"a whole number from {least}", value)
        for field, most in _MOST.items():
            if getattr(self, field) > most:
                raise InvalidInput(field, f"at most {most}", getattr(self, field))
        # The default stays what it is with smaller files, whose store refuses the records that they cannot hold.
        most = max(DEFAULT_MESSAGE_BYTES, self.commitlog_file_bytes - MOST_BESIDE_BODY)
        if self.max_message_bytes > most:
            limit = f"at most {most}, with commit log files of {self.commitlog_file_bytes} bytes"
            raise InvalidInput("max_message_bytes", limit, self.max_message_bytes, remedy="raise commitlog_file_bytes")
        _check_number("retention_hours", self.retention_hours, MOST_HOURS)
        _check_number("disk_refuse_ratio", self.disk_refuse_ratio, 1)
        hour = self.delete_at_hour
        if not isinstance(hour, str) or (hour != "*" and not (hour.isdecimal() and hour.isascii() and int(hour) < 24)):
            raise InvalidInput("delete_at_hour", '"00" to "23" or "*"', hour)
        delay_levels.parse(self.delay_levels)
        split_host(self.store_host)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of each level; level k at index k - 1."""
        return delay_levels.parse(self.delay_levels)


def _check_number(field: str, value: object, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise InvalidInput(field, f"a number above 0, at most {most}", value)


def split_host(text: str) -> tuple[bytes, int]:
    """Packed IPv4 address and port of "a.b.c.d:port"; InvalidInput for anything else."""
    host, _, port = text.rpartition(":")
    try:
        packed = ipaddress.IPv4Address(host).packed
        number = int(port)
    except ValueError:
        raise InvalidInput("store_host", "a numeric IPv4 address and a port", text) from None
    if not 0 <= number <= 0xFFFF:
        raise InvalidInput("store_host", "a port up to 65535", text)
    return packed, number
