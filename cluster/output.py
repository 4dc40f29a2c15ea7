"""Print the results of commands: JSON on stdout with --json, otherwise a table.

Field names are those of the Python API. Texts from users and messages are shown unchanged: they are not parsed as
markup, and their control characters are escaped, so that they cannot control the terminal.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from raymq.actors.protocol import BrokerInfo
from raymq.client import FoundMessages, ReceivedMessage, timestamps
from raymq.client.plain_data import to_plain_data

#: Wider than any line: without a terminal, lines are neither wrapped nor cut.
_NO_TERMINAL_WIDTH: Final = 100_000
#: The characters of a body that a table shows.
_SHOWN_CHARACTERS: Final = 60
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_AND_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f]")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error, which the caller of the command handles."""
        raise  # noqa: PLE0704 - called while the error is handled


def console(out: TextIO | None = None, *, quiet: bool = False) -> Console:
    """Return a console for tables, as wide as the terminal of `out` (default stdout).

    Without a terminal it is as wide as needed.
    """
    is_terminal = (out or sys.stdout).isatty()
    return _Console(file=out, width=None if is_terminal else _NO_TERMINAL_WIDTH, quiet=quiet, highlight=False)


def cell(value: Any) -> Text:
    """Format a value for a table cell, on one line."""
    plain = to_plain_data(value)
    return Text("-" if plain is None else _escaped(_CONTROL_AND_BREAKS, _in_words(plain)), overflow="fold")


def _in_words(plain: Any) -> str:
    """Return plain data as text for people, without the brackets and quotes of a program."""
    if isinstance(plain, dict | list) and not plain:
        return "-"
    if isinstance(plain, dict):
        return ", ".join(f"{name} {each}" for name, each in plain.items())
    return ", ".join(map(str, plain)) if isinstance(plain, list) else str(plain)


#: Fields with seconds since 1970, besides those that end in _timestamp.
_TIMES: Final = frozenset({"dead_at", "deliver_at", "kept_at", "made_at"})
#: Fields with time spans in seconds.
_SPANS: Final = frozenset({"lateness", "age", "oldest_unfinished_age", "longest_call"})


def format_value(field: str, value: Any) -> Any:
    """Return a field's value in the form for a table.

    Times get their time zone, time spans get units, and ratios become percentages.
    """
    if not isinstance(value, float | int) or isinstance(value, bool):
        return value
    if field in _TIMES or field.endswith("_timestamp"):
        return timestamps.shown(value) if value else None
    if field in _SPANS:
        return timestamps.format_duration(value)
    if field.endswith("_per_second"):
        return f"{value:,.1f}"
    return f"{value:.1%}" if field.endswith("_ratio") else value


def _escaped(which: re.Pattern[str], text: str) -> str:
    """Replace control characters, which could control a terminal, with Python's escapes."""
    return which.sub(lambda found: ascii(found[0])[1:-1], text)


def escape_line_breaks(text: str) -> str:
    """Replace control characters and line breaks with Python's escapes."""
    return _escaped(_CONTROL_AND_BREAKS, text)


#: Fields of brokers that are shown only if their groups have several replicas.
_OF_REPLICAS: Final = ("in_sync", "confirmed_offset", "end_offset", "lag_bytes")
_COLUMNS: Final = ("name", "role", "state", "epoch", "address", "pid", "store", "disk_ratio", "version")
_COLUMNS_WITH_REPLICAS: Final = (
    *("name", "replica", "role", "state", "epoch", "in_sync", "confirmed_offset", "end_offset", "lag_bytes"),
    *("address", "pid", "store", "disk_ratio", "version"),
)


def broker_fields(broker: BrokerInfo) -> dict[str, Any]:
    """Return the fields of a broker for printing.

    Replica fields are omitted if the broker's group has no replicas.
    """
    fields: dict[str, Any] = to_plain_data(broker)
    if all(fields[name] is None for name in _OF_REPLICAS) and not broker.replica:
        return {name: value for name, value in fields.items() if name not in _OF_REPLICAS}
    return fields


def broker_rows(brokers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the table columns of brokers in the form of `broker_fields`.

    The counts of refused messages are shown if there are any. What an unreachable broker did not tell is unknown.
    """
    has_replicas = any(name in broker for broker in brokers for name in _OF_REPLICAS)
    shown: tuple[str, ...] = _COLUMNS_WITH_REPLICAS if has_replicas else _COLUMNS
    if any(broker.get("refusals") for broker in brokers):
        shown += ("refusals",)
    known_of_all = ("name", "replica", "role", "state", "address")
    return [
        {name: broker.get(name) if broker["state"] != "unreachable" or name in known_of_all else None for name in shown}
        for broker in brokers
    ]


def message_fields(message: ReceivedMessage) -> dict[str, Any]:
    """Return the fields of a message for printing.

    The body is text if it is UTF-8, else base64 in `body_base64`.
    """
    fields: dict[str, Any] = to_plain_data(message)
    fields.pop("physical_offset")
    body = message.body
    try:
        fields["body"] = body.decode("utf-8")
    except UnicodeDecodeError:
        fields.pop("body")
        fields["body_base64"] = base64.b64encode(body).decode("ascii")
    return fields


def body_preview(body: bytes) -> str:
    """Return the beginning of a body as text for one column of a table.

    Bytes that are not UTF-8 are replaced.
    """
    return shortened(body[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "replace"))


def shortened(text: str) -> str:
    """Return the beginning of a text for one column of a table."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def warn_truncated(found: FoundMessages[Any]) -> None:
    """Report on stderr that a list was truncated."""
    if found.truncated:
        click.echo(f"{len(found)} of at least {len(found)}: --limit", err=True)


def print_json(value: Any) -> None:
    """Print one JSON value and nothing else.

    Characters that stdout's encoding lacks are escaped.
    """
    text = json.dumps(to_plain_data(value), ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(to_plain_data(value), allow_nan=False)
    click.echo(text)


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str) -> None:
    """Print rows with the same fields, as a JSON list or a table.

    Without rows the text `empty` is printed instead of a table.
    """
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        click.echo(empty)
        return
    console().print(rows_table(rows))


def rows_table(rows: Sequence[Mapping[str, Any]], empty: str = "") -> Table | Text:
    """Return rows with the same fields as a table, or `empty` without rows."""
    if not rows:
        return Text(empty)
    table = Table(box=box.SIMPLE_HEAD)
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(cell(format_value(name, value)) for name, value in row.items()))
    return table


def print_fields(fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the fields of one object."""
    if as_json:
        print_json(fields)
        return
    width = max(map(len, fields))
    for name, value in fields.items():
        read = format_value(name, value)
        shown = "-" if read is None else _escaped(_CONTROL, _in_words(to_plain_data(read)))
        click.echo(f"{name:<{width}}  {shown}")
