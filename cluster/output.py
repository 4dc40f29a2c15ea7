"""How commands print: one JSON value on stdout with --json, else a table; field names are those of the Python API."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from raymq.client import ReceivedMessage


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


def print_json(value: Any) -> None:
    """One JSON value and nothing else."""
    click.echo(json.dumps(plain(value), ensure_ascii=False))


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
        table.add_column(name)
    for row in rows:
        table.add_row(*("-" if value is None else str(plain(value)) for value in row.values()))
    Console().print(table)


def print_fields(fields: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing with its fields."""
    if as_json:
        print_json(fields)
        return
    width = max(map(len, fields))
    for name, value in fields.items():
        shown = plain(value)
        click.echo(f"{name:<{width}}  {'-' if shown is None else shown}")
