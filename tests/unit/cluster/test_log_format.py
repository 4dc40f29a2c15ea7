"""Test the forms of log lines."""

from __future__ import annotations

import json
import logging
import sys

from raymq.cluster.log_format import JsonLog, TextLog, formatter


def record(message: str, *arguments: object, logger: str = "shop", failed: bool = False) -> logging.LogRecord:
    error = sys.exc_info() if failed else None
    return logging.LogRecord(logger, logging.WARNING, "f.py", 1, message, arguments, error)


def test_json_lines_have_one_object_each() -> None:
    line = JsonLog().format(record("two\nlines of %s", "grün"))
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.keys() == {"time", "level", "logger", "message"}
    assert (fields["level"], fields["logger"], fields["message"]) == ("WARNING", "shop", "two\nlines of grün")
    assert fields["time"].endswith("+00:00")


def test_json_lines_have_the_exception() -> None:
    try:
        raise ValueError("no such account")
    except ValueError:
        fields = json.loads(JsonLog().format(record("failed", failed=True)))
    assert "ValueError: no such account" in fields["exception"]


def test_formatters_are_chosen_by_name() -> None:
    assert isinstance(formatter("json"), JsonLog)
    assert isinstance(formatter("text"), TextLog)
