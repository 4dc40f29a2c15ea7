"""`raymq group ...`."""

from __future__ import annotations

from dataclasses import asdict

import click

from raymq.client import Admin, MessageQueue, QueueProgress
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


def _progress_table(rows: Rows) -> Rows:
    """For people: a topic that does not exist is marked in the broker's column."""
    told = [{**row, "broker": "(does not exist)"} if row["missing"] else row for row in rows]
    return [{name: value for name, value in row.items() if name != "missing"} for row in told]


@group_commands.command("progress")
@click.argument("name")
@admin_rows("no queue", table=_progress_table)
def group_progress(admin: Admin, name: str) -> Rows:
    """How far group NAME is in each queue, and which topics it waits for since they do not exist."""
    progress = admin.group_progress(name)
    unknown = {"broker": None, "queue_id": None, **asdict(QueueProgress(None, None, None, None)), "missing": True}
    rows = [{**_queue_fields(queue), **asdict(found), "missing": False} for queue, found in progress.items()]
    return [*rows, *({"topic": topic, **unknown} for topic in progress.missing_topics)]


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
