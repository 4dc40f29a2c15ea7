"""The settings of one store directory."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from raymq.storage import delay_levels
from raymq.storage.errors import InvalidInput
from raymq.storage.records.message_limits import DEFAULT_MESSAGE_BYTES, MAX_MESSAGE_BYTES, MAX_RECORD_OVERHEAD
from raymq.storage.setting_spec import Effect, check_fields, describe, settings_of

#: A hundred years, in hours.
MAX_RETENTION_HOURS = 876_600
_MAX_CHECK_SECONDS = 86_400 * 365
#: The largest size of a file: RocketMQ, which may open the directory, keeps it in a signed 32-bit int.
_MAX_FILE_BYTES = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of a store; the sizes of existing files take precedence over those given here.

    The annotations say what each setting does, its unit and its range.

    Raises:
        InvalidInput: a value breaks its setting's rule.
    """

    flush: Annotated[
        Literal["async", "sync"],
        describe(
            "When a message is acknowledged: `async` once it is in the mapped log, so that it survives any death of "
            "the broker's process; `sync` once it is on disk, so that it survives the loss of power."
        ),
    ] = "async"
    flush_interval_ms: Annotated[
        int, describe("How often the background looks for something to flush.", unit="ms", ge=1, le=1 << 31)
    ] = 500
    flush_least_pages: Annotated[
        int,
        describe("Dirty pages of 4 KiB below which a flush waits, at most 10 s.", unit="pages", ge=0, le=1 << 31),
    ] = 4
    commitlog_file_bytes: Annotated[
        int,
        describe(
            "Size of a commit log file. Files are sparse.",
            unit="bytes",
            effect=Effect.NEW_FILES,
            ge=256,
            le=_MAX_FILE_BYTES,
        ),
    ] = 1 << 30
    consume_queue_file_entries: Annotated[
        int,
        describe(
            "Entries of 20 bytes in a file of a consume queue.",
            unit="entries",
            effect=Effect.NEW_FILES,
            ge=1,
            le=_MAX_FILE_BYTES // 20,
        ),
    ] = 300_000
    index_slots: Annotated[
        int,
        describe("Hash slots of 4 bytes in an index file.", unit="slots", effect=Effect.NEW_FILES, ge=1, le=1 << 30),
    ] = 5_000_000
    index_entries: Annotated[
        int,
        describe("Entries of 20 bytes in an index file.", unit="entries", effect=Effect.NEW_FILES, ge=2, le=1 << 30),
    ] = 20_000_000
    delay_levels: Annotated[
        str,
        describe(
            "The waits of delay levels 1, 2, 3 and so on. The first retry of a failed message waits level 3, the "
            "second level 4.",
            form='waits separated by spaces, such as "1s 5m 2h 1d"',
        ),
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    max_message_bytes: Annotated[
        int,
        describe(
            "The largest body of a message. Producers learn it from the brokers. Above 4 MiB a record has to fit into "
            "a commit log file.",
            unit="bytes",
            ge=1,
            le=MAX_MESSAGE_BYTES,
        ),
    ] = DEFAULT_MESSAGE_BYTES
    retention_hours: Annotated[
        float,
        describe(
            "How long messages are kept. A disk that is 75 % full loses old log files at any hour, one that is 85 % "
            "full younger ones too.",
            unit="hours",
            effect=Effect.AT_ONCE,
            gt=0,
            le=MAX_RETENTION_HOURS,
        ),
    ] = 72.0
    delete_at_hour: Annotated[
        str,
        describe(
            'The hour of the day in which expired log files are deleted; "*" is any hour.',
            form='"00" to "23" or "*"',
            effect=Effect.AT_ONCE,
            pattern=r"^(\*|0*(1?[0-9]|2[0-3]))\Z",
        ),
    ] = "04"
    disk_refuse_ratio: Annotated[
        float, describe("The used share of the disk from which on a broker refuses messages.", gt=0, le=1)
    ] = 0.90
    max_auto_groups: Annotated[
        int,
        describe(
            "Consumer groups of a broker from which on a consumer does not create its group any more.",
            unit="groups",
            ge=0,
        ),
    ] = 10_000
    max_auto_topics: Annotated[
        int,
        describe(
            "Topics of a broker from which on a producer does not create its topic any more.", unit="topics", ge=0
        ),
    ] = 20_000
    transaction_check_after: Annotated[
        float,
        describe(
            "How long a transaction may be open before its producers are asked how it ended.",
            unit="seconds",
            ge=0,
            le=_MAX_CHECK_SECONDS,
        ),
    ] = 6.0
    transaction_check_every: Annotated[
        float,
        describe(
            "The time between two questions about the same open transaction.",
            unit="seconds",
            gt=0,
            le=_MAX_CHECK_SECONDS,
        ),
    ] = 30.0
    transaction_check_max: Annotated[
        int,
        describe(
            "How often the producers of an open transaction are asked before the broker gives it up. Questions that "
            "reach no producer do not count.",
            unit="questions",
            ge=1,
            le=1_000_000,
        ),
    ] = 15
    #: The broker's numeric IPv4 address and port, stamped into each record.
    store_host: str = "127.0.0.1:10911"

    def __post_init__(self) -> None:
        check_fields(STORE_SETTINGS, self)
        # Smaller files keep the default limit: the store refuses the records that do not fit into a file.
        most = max(DEFAULT_MESSAGE_BYTES, self.commitlog_file_bytes - MAX_RECORD_OVERHEAD)
        if self.max_message_bytes > most:
            limit = f"at most {most}, with commit log files of {self.commitlog_file_bytes} bytes"
            raise InvalidInput("max_message_bytes", limit, self.max_message_bytes, remedy="raise commitlog_file_bytes")
        delay_levels.parse(self.delay_levels)
        split_host(self.store_host)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """Return the delay of each level in ms; level k at index k - 1."""
        return delay_levels.parse(self.delay_levels)


STORE_SETTINGS: Final = settings_of(StoreConfig)


def split_host(text: str) -> tuple[bytes, int]:
    """Return the packed IPv4 address and the port of "a.b.c.d:port".

    Raise InvalidInput for any other text.
    """
    host, _, port = text.rpartition(":")
    try:
        packed = ipaddress.IPv4Address(host).packed
        number = int(port)
    except ValueError:
        raise InvalidInput("store_host", "a numeric IPv4 address and a port", text) from None
    if not 0 <= number <= 0xFFFF:
        raise InvalidInput("store_host", "a port up to 65535", text)
    return packed, number
