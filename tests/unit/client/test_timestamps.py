"""Test times given by users: valid are seconds, aware datetimes and texts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from raymq.client import Connection, ConsumeFrom, InvalidInput, Message, PushConsumer, arguments
from raymq.client.timestamps import (
    FAR_FUTURE_MS,
    checked_due_time,
    format_duration,
    milliseconds_or_end,
    parse_duration,
    parse_time,
    shown,
)
from raymq.cluster.output import format_value
from raymq.spark_bridge.offset_ranges import check_position
from raymq.spark_bridge.row_staging import delivery_times
from raymq.spark_bridge.spark4_source.source_options import read_options

MILLISECONDS = 1_764_300_000_000
NOON = datetime(2025, 11, 28, 12, tzinfo=timezone(timedelta(hours=2)))


def option(value: Any) -> Any:
    return read_options({"name_servers": "h:1", "topic": "t", "start": str(value)}, {}).start


def column(value: Any) -> Any:
    array = pa.array([value], pa.timestamp("us", "UTC") if isinstance(value, datetime) else pa.float64())
    return delivery_times(pa.table({"at": array}), "at", None)


def push(value: Any) -> Any:
    settings: Any = {"consume_from": ConsumeFrom.TIMESTAMP, "consume_timestamp": value}
    with Connection(["127.0.0.1:9"]) as mq:
        return PushConsumer(mq, "g", {"t": "*"}, print, **settings)


#: All calls that take a time and check it without a cluster.
CALLS: dict[str, Callable[[Any], Any]] = {
    "argument": lambda value: arguments.timestamp("at", value),
    "reset": lambda value: milliseconds_or_end("at", value),
    "message": lambda value: Message("t", b"x", deliver_at=value),
    "spark": lambda value: check_position("start", value),
    "spark option": option,
    "spark column": column,
    "push": push,
    "command line": lambda value: parse_time("at", str(value)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(
    "value",
    [MILLISECONDS, MILLISECONDS * 1_000, time.time() + 101 * 366 * 86_400],
    ids=["milliseconds", "microseconds", "101 years ahead"],
)
def test_milliseconds_are_refused_with_a_hint(call: Callable[[Any], Any], value: float) -> None:
    with pytest.raises(InvalidInput, match="seconds since 1970; this looks like milliseconds"):
        call(value)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "spark column"])
@pytest.mark.parametrize("value", [math.nan, -math.inf, -1, -0.5])
def test_number_outside_the_time_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidInput):
        CALLS[name](value)


@pytest.mark.parametrize("name", ["argument", "reset", "spark", "push"])
@pytest.mark.parametrize(
    "value",
    [True, "2025-11-28", NOON.replace(tzinfo=None), datetime(1, 1, 1, tzinfo=UTC), pd.NaT, date(2025, 1, 1)],
)
def test_bools_texts_and_naive_datetimes_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput):
        CALLS[name](value)


def test_naive_datetime_error_asks_for_a_time_zone() -> None:
    for call in (CALLS["argument"], CALLS["message"], CALLS["spark option"]):
        with pytest.raises(InvalidInput, match="without a time zone") as caught:
            call(NOON.replace(tzinfo=None))
        assert "astimezone" in caught.value.remedy


def test_aware_datetime_is_converted_to_seconds() -> None:
    assert arguments.timestamp("at", NOON) == NOON.timestamp()
    assert check_position("start", NOON) == option(NOON) == NOON.timestamp()
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert Message("t", b"x", deliver_at=soon).deliver_at == soon.timestamp()


def test_infinity_is_accepted_only_by_offset_resets() -> None:
    assert milliseconds_or_end("at", math.inf) == FAR_FUTURE_MS
    for name in CALLS.keys() - {"reset"}:
        with pytest.raises(InvalidInput):
            CALLS[name](math.inf)


@pytest.mark.parametrize(
    "call", [lambda at: checked_due_time("deliver_at", at), CALLS["message"], CALLS["spark column"]]
)
def test_delivery_over_40_days_ahead_is_refused(call: Callable[[Any], Any]) -> None:
    call(time.time() + 39.9 * 86_400)
    with pytest.raises(InvalidInput, match="seconds since 1970, at most 40 days ahead") as caught:
        call(time.time() + 40.1 * 86_400)
    assert caught.value.field == "deliver_at"


def test_command_line_times_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_time("to", "1700000000.5") == 1_700_000_000.5
        assert parse_time("to", "2025-11-28T12:00:00+02:00") == NOON.timestamp()
        assert parse_time("to", "2025-11-28T10:00:00Z") == NOON.timestamp()
        assert parse_time("to", "2025-11-28 19:00") == NOON.timestamp()  # local
        assert shown(NOON.timestamp()) == "2025-11-28T19:00:00.000+09:00"
    finally:
        monkeypatch.undo()
        time.tzset()
    for text, seconds in (("2h", 7_200), ("90s", 90), ("1h30m", 5_400), ("1d 2h", 93_600), ("5 min", 300)):
        assert parse_time("to", text) == pytest.approx(time.time() - seconds, abs=5)
    assert parse_time("to", "inf", end=True) == math.inf


@pytest.mark.parametrize("text", ["soon", "", "2x", "-2h", "h", "inf", "2025-13-01", "2h ago"])
def test_invalid_command_line_times_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_time("to", text)


def test_command_line_durations_are_parsed() -> None:
    assert (parse_duration("d", "90s"), parse_duration("d", "2.5"), parse_duration("d", "1h30m")) == (90, 2.5, 5_400)
    for text in ("x", "-1", "nan", "400d"):
        with pytest.raises(InvalidInput):
            parse_duration("d", text)


def test_tables_show_readable_times_durations_and_ratios() -> None:
    assert [format_duration(each) for each in (0.25, 12, 59.7, 180, 3_600, 7_800, 200_000, 350_000)] == [
        *("0.25 s", "12 s", "1 min", "3 min", "1 h", "2 h 10 min", "2 d 8 h", "4 d 1 h")
    ]
    assert format_value("dead_at", NOON.timestamp()).startswith("2025-11-2")
    assert format_value("last_store_timestamp", 0.0) is None
    assert format_value("disk_ratio", 0.7512) == "75.1%"
    assert format_value("lateness", 180.0) == "3 min"
    assert format_value("lag", 180) == 180
