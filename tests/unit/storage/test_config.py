"""Test store settings and the table of delay levels."""

from __future__ import annotations

from typing import Any

import pytest

from raymq.storage import delay_levels
from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput


def test_default_delay_levels_are_parsed() -> None:
    delays_ms = StoreConfig().delays_ms
    assert len(delays_ms) == 18
    assert (delays_ms[0], delays_ms[4], delays_ms[17]) == (1_000, 60_000, 7_200_000)
    assert delay_levels.parse("2d 3s") == (172_800_000, 3_000)


@pytest.mark.parametrize("text", ["", "  ", "1", "s", "1x", "-1s", "1.5s", "1s,2s"])
def test_malformed_delay_levels_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        delay_levels.parse(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"flush": "never"},
        {"flush_interval_ms": 0},
        {"commitlog_file_bytes": 1},
        {"consume_queue_file_entries": 0},
        {"index_entries": 1},
        {"index_slots": 1.5},
        {"max_message_bytes": True},
        {"max_message_bytes": 0},
        {"max_message_bytes": (64 << 20) + 1},
        {"max_message_bytes": 20 << 20, "commitlog_file_bytes": 20 << 20},
        {"retention_hours": 0.0},
        {"delete_at_hour": "24"},
        {"delete_at_hour": "x"},
        {"disk_refuse_ratio": 0.0},
        {"disk_refuse_ratio": 1.1},
        {"store_host": "localhost:1"},
        {"store_host": "127.0.0.1"},
        {"store_host": "127.0.0.1:65536"},
        {"delay_levels": "soon"},
    ],
)
def test_invalid_setting_is_named_in_the_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        StoreConfig(**wrong)
    assert caught.value.field == next(iter(wrong))


def test_max_message_bytes_must_fit_into_a_log_file() -> None:
    beside = 33 << 10
    StoreConfig(max_message_bytes=64 << 20)
    StoreConfig(max_message_bytes=20 << 20, commitlog_file_bytes=(20 << 20) + beside)
    with pytest.raises(InvalidInput, match=r"max_message_bytes: at most 20971519, .*raise commitlog_file_bytes"):
        StoreConfig(max_message_bytes=20 << 20, commitlog_file_bytes=(20 << 20) + beside - 1)
    StoreConfig(commitlog_file_bytes=1 << 20)  # the default of max_message_bytes need not fit
