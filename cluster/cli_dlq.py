"""The commands `raymq dlq ...`, for the dead letters of consumer groups."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import click

from raymq.client import Admin, RayMQError
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.output import body_preview, message_fields, print_fields, print_json, print_rows, warn_truncated

_YES_NO = {True: "yes", False: "no"}


@click.group("dlq")
def dlq_commands() -> None:
    """List, send again, delete and export the dead letters of a group."""


@dlq_commands.command("list")
@click.argument("group")
@click.option("--limit", default=1000, show_default=True)
@json_option
@click.pass_obj
def list_dead_letters(finder: Finder, group: str, limit: int, as_json: bool) -> None:
    """List the dead letters of GROUP, in the order in which they became dead letters."""
    with finder.connect() as mq, Admin(mq) as admin:
        found = admin.dlq_list(group, limit)
    warn_truncated(found)
    if as_json:
        print_json([message_fields(message) for message in found])
        return
    rows = [
        {
            "message_id": message.message_id,
            "topic": message.topic,
            "keys": " ".join(message.keys),
            "dead_at": message.dead_at,
            "reason": message.reason,
            "redriven": None if message.redriven is None else _YES_NO[message.redriven],
            "body": body_preview(message.body),
        }
        for message in found
    ]
    print_rows(rows, as_json=False, empty=f"no dead letter of {group}")


@dlq_commands.command("redrive")
@click.argument("group")
@click.option("--id", "ids", multiple=True, help="A message id; may be given several times. Without: all.")
@click.option("--rate", type=float, help="At most this many messages per second.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@click.option("--force", is_flag=True, help="Also send dead letters that were redriven before.")
@json_option
@click.pass_obj
def redrive_dead_letters(
    finder: Finder, group: str, ids: tuple[str, ...], rate: float | None, dry_run: bool, force: bool, as_json: bool
) -> None:
    """Send dead letters of GROUP to it once more."""
    with finder.connect() as mq, Admin(mq) as admin:
        result = admin.dlq_redrive(group, list(ids) or None, rate, dry_run, force=force)
    data: dict[str, Sequence[object]] = {field.name: getattr(result, field.name) for field in fields(result)}
    if as_json:
        print_json(data)
        return
    counts = {name: len(found) for name, found in data.items()}
    if dry_run:  # nothing was sent
        counts = {"would be redriven": counts.pop("redriven"), **counts}
    print_fields(counts, as_json=False)


@dlq_commands.command("delete")
@click.argument("group")
@click.option("--id", "ids", multiple=True, help="A message id; may be given several times. Without: all.")
@click.option("--dry-run", is_flag=True, help="Show how many would be deleted, and change nothing.")
@click.option("--yes", is_flag=True, help="Really delete them.")
@json_option
@click.pass_obj
def delete_dead_letters(
    finder: Finder, group: str, ids: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete dead letters of GROUP; they cannot be sent again afterwards."""
    if not dry_run and not yes:
        what = f"{len(ids) or 'all'} dead letters of {group}"
        raise RayMQError(f"add --yes to delete {what} (raymq dlq list shows them)")
    with finder.connect() as mq, Admin(mq) as admin:
        count = admin.dlq_delete(group, list(ids) or None, dry_run=dry_run)
    print_fields({"group": group, "selected": count, "deleted": 0 if dry_run else count}, as_json=as_json)


@dlq_commands.command("export")
@click.argument("group")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
@click.pass_obj
def export_dead_letters(finder: Finder, group: str, file: Path, as_json: bool) -> None:
    """Write the dead letters of GROUP to FILE, one JSON object per line."""
    count = 0
    with finder.connect() as mq, Admin(mq) as admin:
        messages = admin.dlq_messages(group)
        with file.open("w", encoding="utf-8") as stream:
            for message in messages:
                row = message_fields(message)
                del row["redriven"]  # it would be out of date in a file
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
    print_fields({"group": group, "file": str(file), "messages": count}, as_json=as_json)
