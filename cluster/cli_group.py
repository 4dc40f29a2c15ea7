"""`raymq group ...`."""

from __future__ import annotations

from dataclasses import asdict

import click

from raymq.client import Admin, MessageQueue
from raymq.client.timestamps import AS_TEXT
from raymq.cluster.cli_context import Rows, Time, admin_rows

_topic = click.argument("topic")
_dry_run = click.option("--dry-run", is_flag=True, help="Say what would be gone to, and change nothing.")


@click.group("group")
def group_commands() -> None:
    """Look at consumer groups and send them elsewhere."""


@group_commands.command("list")
@admin_rows("no group yet")
def list_groups(admin: Admin) -> Rows:
    """The consumer groups of the cluster."""
    return [{"group": group} for group in admin.groups()]


@group_commands.command("progress")
@click.argument("name")
@admin_rows("no queue")
def group_progress(admin: Admin, name: str) -> Rows:
    """How far group NAME is in each queue."""
    return [{**_queue_fields(queue), **asdict(found)} for queue, found in admin.group_progress(name).items()]


@group_commands.command("reset")
@click.argument("name")
@_topic
@click.option("--to", "timestamp", required=True, type=Time(end=True), help=f"{AS_TEXT}; the future is the end.")
@_dry_run
@admin_rows("no queue")
def reset_group(admin: Admin, name: str, topic: str, timestamp: float, dry_run: bool) -> Rows:
    """Send group NAME to the first messages of TOPIC stored at a time or later; it may be running."""
    return _target_rows(admin.reset_offset_by_time(name, topic, timestamp, dry_run=dry_run), dry_run=dry_run)


@group_commands.command("skip")
@click.argument("name")
@_topic
@_dry_run
@admin_rows("no queue")
def skip_messages(admin: Admin, name: str, topic: str, dry_run: bool) -> Rows:
    """Send group NAME behind the last message of TOPIC."""
    return _target_rows(admin.skip(name, topic, dry_run=dry_run), dry_run=dry_run)


def _target_rows(targets: dict[MessageQueue, int], *, dry_run: bool) -> Rows:
    return [{**_queue_fields(queue), "offset": offset, "reset": not dry_run} for queue, offset in targets.items()]


def _queue_fields(queue: MessageQueue) -> dict[str, str | int]:
    return {"topic": queue.topic, "broker": queue.broker, "queue_id": queue.queue_id}
