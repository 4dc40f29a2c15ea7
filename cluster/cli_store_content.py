"""The commands `raymq store inspect` and `raymq store dump`.

Look into a directory without a cluster.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import click

from raymq.client import ReceivedMessage
from raymq.client.plain_data import to_plain_data
from raymq.cluster.cli_context import json_option
from raymq.cluster.message_lines import message_line
from raymq.cluster.output import message_fields, print_fields, print_json, print_rows
from raymq.storage.store_inspection import DumpReport, inspect_store, iter_records
from raymq.storage.tables.broker_identity import read_broker_identity


@click.command("inspect")
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def inspect(directory: Path, as_json: bool) -> None:
    """Show what is in DIRECTORY, whose broker may run: formats, files, offsets and tables.

    Change nothing.
    """
    found: dict[str, Any] = to_plain_data(inspect_store(directory))
    if as_json:
        print_json(found)
        return
    lists = {name: found.pop(name) for name in ("folders", "queues", "tables")}
    broker = found.pop("broker")
    owner = f"{broker['name']} of {broker['cluster']}" if broker["name"] else None
    print_fields({**found, "broker": owner}, as_json=False)
    for name, rows in lists.items():
        click.echo(f"\n{name}:")
        print_rows(rows, as_json=False, empty="  none")


@click.command("dump")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--topic", help="Only this topic.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Only this queue of each topic.")
@click.option("--from", "begin", type=click.IntRange(0), help="The first offset in each queue.")
@click.option("--limit", type=click.IntRange(1), help="End after this many messages.")
@json_option
def dump(
    directory: Path, topic: str | None, queue_id: int | None, begin: int | None, limit: int | None, as_json: bool
) -> None:
    """Show the stored messages of DIRECTORY, whose broker may run, queue by queue. Change nothing.

    With --json each message is one line of JSON, with the same fields as `raymq message get --json`. Damaged messages
    are left out and named on stderr, and the exit code is 1 then.
    """
    broker = read_broker_identity(directory / "raymq" / "broker.json").name or directory.name
    report = DumpReport()
    for record in islice(iter_records(directory, topic, queue_id, begin, report), limit):
        message = ReceivedMessage.from_record(record, broker)
        if as_json:
            print_json(message_fields(message))
        else:
            click.echo(message_line(message))
    for name, number, offset, reason in report.unreadable:
        click.echo(f"damaged: {name} queue {number} offset {offset}: {reason}", err=True)
    if report.unreadable:
        sys.exit(1)
