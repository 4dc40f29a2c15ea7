"""How commands print: one JSON value on stdout with --json, else a table; field names are those of the Python API.

What users and messages name is shown as it is, never read as markup, and cannot steer the terminal.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
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

#: Wider than any line: where no person looks at a terminal, nothing is wrapped or cut.
_NO_TERMINAL_WIDTH: Final = 100_000
#: Of a body in a table.
_SHOWN_CHARACTERS: Final = 60
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_AND_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f]")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to who runs the command."""
        raise  # noqa: PLE0704 - called where the error is handled


def console(out: TextIO | None = None, *, quiet: bool = False) -> Console:
    """For tables: as wide as the terminal, and as wide as needed where `out` (stdout) is none."""
    is_terminal = (out or sys.stdout).isatty()
    return _Console(file=out, width=None if is_terminal else _NO_TERMINAL_WIDTH, quiet=quiet, highlight=False)


def cell(value: Any) -> Text:
    """A value in a table, on one line."""
    told = plain(value)
    if isinstance(told, dict) and told:
        told = ", ".join(f"{name} {each}" for name, each in told.items())
    return Text("-" if told is None else _escaped(_CONTROL_AND_BREAKS, str(told)), overflow="fold")


#: Fields whose values are seconds since 1970, beside those that end in _timestamp.
_TIMES: Final = frozenset({"dead_at", "kept_at", "made_at"})
#: Fields whose values are time spans in seconds.
_SPANS: Final = frozenset({"lateness", "age", "oldest_unfinished_age"})


def as_people_read(field: str, value: Any) -> Any:
    """Return a field's value for a table: times with their zone, time spans with units, ratios as percent."""
    if not isinstance(value, float | int) or isinstance(value, bool):
        return value
    if field in _TIMES or field.endswith("_timestamp"):
        return timestamps.shown(value) if value else None
    if field in _SPANS:
        return timestamps.shown_span(value)
    return f"{value:.1%}" if field.endswith("_ratio") else value


def _escaped(which: re.Pattern[str], text: str) -> str:
    """Control characters, which could steer a terminal, as what Python writes for them."""
    return which.sub(lambda found: ascii(found[0])[1:-1], text)


def on_one_line(text: str) -> str:
    """Text with its control characters and line breaks as what Python writes for them."""
    return _escaped(_CONTROL_AND_BREAKS, text)


def plain(value: Any) -> Any:
    """Dataclasses, named tuples, enums and tuples as what JSON has."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


#: What is told of brokers only where their groups have several replicas.
_OF_REPLICAS: Final = ("in_sync", "confirmed_offset", "end_offset", "lag_bytes")
_COLUMNS: Final = ("name", "role", "state", "epoch", "address", "pid", "store", "disk_ratio", "version")
_COLUMNS_WITH_REPLICAS: Final = (
    *("name", "replica", "role", "state", "epoch", "in_sync", "confirmed_offset", "end_offset", "lag_bytes"),
    *("address", "pid", "store", "version"),
)


def broker_fields(broker: BrokerInfo) -> dict[str, Any]:
    """A broker for printing; of one without replicas nothing is said of them."""
    fields: dict[str, Any] = plain(broker)
    if all(fields[name] is None for name in _OF_REPLICAS) and not broker.replica:
        return {name: value for name, value in fields.items() if name not in _OF_REPLICAS}
    return fields


def broker_rows(brokers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of what `broker_fields` gives that which is for a table."""
    has_replicas = any(name in broker for broker in brokers for name in _OF_REPLICAS)
    shown = _COLUMNS_WITH_REPLICAS if has_replicas else _COLUMNS
    return [{name: broker.get(name) for name in shown} for broker in brokers]


def message_fields(message: ReceivedMessage) -> dict[str, Any]:
    """A message for printing; its body as text where it is UTF-8, else as base64 in `body_base64`."""
    fields: dict[str, Any] = plain(message)
    fields.pop("physical_offset")
    body = message.body
    try:
        fields["body"] = body.decode("utf-8")
    except UnicodeDecodeError:
        fields.pop("body")
        fields["body_base64"] = base64.b64encode(body).decode("ascii")
    return fields


def beginning(body: bytes) -> str:
    """The beginning of a body, as text where it is UTF-8, for one column of a table."""
    text = body[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "replace")
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def say_truncated(found: FoundMessages[Any]) -> None:
    """Say on stderr that a list was cut."""
    if found.truncated:
        click.echo(f"{len(found)} of at least {len(found)}: --limit", err=True)


def print_json(value: Any) -> None:
    """One JSON value and nothing else; what stdout's encoding does not have is escaped, as JSON can."""
    told = json.dumps(plain(value), ensure_ascii=False)
    try:
        told.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        told = json.dumps(plain(value))
    click.echo(told)


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str) -> None:
    """Rows of the same fields, as a JSON list or as a table; `empty` is said where there is none."""
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        click.echo(empty)
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(cell(as_people_read(name, value)) for name, value in row.items()))
    console().print(table)


def print_fields(fields: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing with its fields."""
    if as_json:
        print_json(fields)
        return
    width = max(map(len, fields))
    for name, value in fields.items():
        read = as_people_read(name, value)
        shown = "-" if read is None else _escaped(_CONTROL, str(plain(read)))
        click.echo(f"{name:<{width}}  {shown}")
