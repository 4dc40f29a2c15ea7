"""The commands `raymq group ...`."""

from __future__ import annotations

from dataclasses import asdict

import click

from raymq.client import Admin, MessageQueue, QueueProgress, RayMQError
from raymq.client.admin.group_diagnosis import HANG_SECONDS
from raymq.client.timestamps import AS_TEXT
from raymq.cluster.cli_context import Finder, Rows, Time, admin_rows, json_option
from raymq.cluster.output import escape_line_breaks, print_fields, print_json

_topic = click.argument("topic")
_dry_run = click.option("--dry-run", is_flag=True, help="Show the new offsets, and change nothing.")


_SUBSCRIBED = {True: "yes", False: "no: raymq group forget", None: None}


@click.group("group")
def group_commands() -> None:
    """Show and explain consumer groups, change their offsets, and delete them."""


@group_commands.command("list")
@admin_rows("no group yet", watch=True)
def list_groups(admin: Admin) -> Rows:
    """List the consumer groups of the cluster, with their members and their lag."""
    return [asdict(group) for group in admin.group_list()]


def _progress_table(rows: Rows) -> Rows:
    """Return the table for people, with marks at some topics and the total lag.

    Topics that do not exist, or that no member subscribes to, are marked.
    """
    marked = [{**row, "broker": "(does not exist)"} if row["missing"] else row for row in rows]
    shown = [
        {name: value for name, value in row.items() if name != "missing"}
        | {"subscribed": _SUBSCRIBED[row["subscribed"]]}
        for row in marked
    ]
    if shown:
        counted = [row for row in rows if row["subscribed"] is not False]
        known = [row["lag"] for row in counted if row["lag"] is not None]
        least = "at least " if any(row["lag"] is None and row["max_offset"] != 0 for row in counted) else ""
        shown.append({**dict.fromkeys(shown[0]), "topic": "total", "lag": f"{least}{sum(known)}" if known else None})
    return shown


@group_commands.command("progress")
@click.argument("name")
@admin_rows("no queue", table=_progress_table, watch=True)
def group_progress(admin: Admin, name: str) -> Rows:
    """Show the progress of group NAME in each queue, and its missing topics."""
    progress = admin.group_progress(name)
    unknown = {"broker": None, "queue_id": None, **asdict(QueueProgress(None, None, None, None)), "missing": True}
    rows = [{**_queue_fields(queue), **asdict(found), "missing": False} for queue, found in progress.items()]
    return [*rows, *({"topic": topic, **unknown} for topic in progress.missing_topics)]


@group_commands.command("members")
@click.argument("name")
@admin_rows("no member is connected", table=lambda rows: [{**row, "queues": len(row["queues"])} for row in rows])
def group_members(admin: Admin, name: str) -> Rows:
    """Show the connected members of group NAME: their queues and their listener calls.

    Pull consumers and Spark are no members.
    """
    return [asdict(member) for member in admin.group_members(name)]


@group_commands.command("why")
@click.argument("name")
@click.option(
    "--hang-after",
    type=float,
    default=HANG_SECONDS,
    show_default=True,
    help="A listener call counts as hanging after this many seconds.",
)
@json_option
@click.pass_obj
def explain_group(finder: Finder, name: str, hang_after: float, as_json: bool) -> None:
    """Say why group NAME does not move, with the evidence."""
    with finder.connect() as mq, Admin(mq) as admin:
        found = admin.explain_group(name, hang_after=hang_after)
    if as_json:
        print_json(found)
        return
    click.echo(escape_line_breaks(f"{found.group}: {found.verdict}"))
    for line in found.evidence:
        click.echo(f"  - {escape_line_breaks(line)}")


@group_commands.command("reset")
@click.argument("name")
@_topic
@click.option("--to", "timestamp", required=True, type=Time(end=True), help=f"{AS_TEXT}; a future time is the end.")
@_dry_run
@admin_rows("no queue")
def reset_group(admin: Admin, name: str, topic: str, timestamp: float, dry_run: bool) -> Rows:
    """Set the offsets of group NAME to the first messages of TOPIC since a time.

    The messages are those that were stored at that time or later. The group may be running.
    """
    return _target_rows(admin.reset_offset_by_time(name, topic, timestamp, dry_run=dry_run), dry_run=dry_run)


@group_commands.command("skip")
@click.argument("name")
@_topic
@_dry_run
@admin_rows("no queue")
def skip_messages(admin: Admin, name: str, topic: str, dry_run: bool) -> Rows:
    """Set the offsets of group NAME after the last message of TOPIC."""
    return _target_rows(admin.skip(name, topic, dry_run=dry_run), dry_run=dry_run)


@group_commands.command("delete")
@click.argument("name")
@click.option("--dead-letters", is_flag=True, help="Delete its dead letters, too; else they stay.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@click.option("--yes", is_flag=True, help="Really delete it.")
@json_option
@click.pass_obj
def delete_group(finder: Finder, name: str, dead_letters: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete group NAME: its offsets, its messages in flight, and its waiting retries."""
    with finder.connect() as mq, Admin(mq) as admin:
        found = admin.delete_group(name, dead_letters, dry_run=True)
        if not dry_run and not yes:
            letters = f"; {found.dead_letters} dead letters would {'be deleted, too' if dead_letters else 'stay'}"
            raise RayMQError(f"add --yes to delete group {name} with {found.retries} waiting retries{letters}")
        if not dry_run:
            found = admin.delete_group(name, dead_letters)
    print_fields(asdict(found), as_json=as_json)


@group_commands.command("forget")
@click.argument("name")
@_topic
@json_option
@click.pass_obj
def forget_topic(finder: Finder, name: str, topic: str, as_json: bool) -> None:
    """Delete the progress of group NAME in TOPIC, which it no longer consumes."""
    with finder.connect() as mq, Admin(mq) as admin:
        queues = admin.forget_topic(name, topic)
    print_fields({"group": name, "topic": topic, "queues": queues}, as_json=as_json)


def _target_rows(targets: dict[MessageQueue, int], *, dry_run: bool) -> Rows:
    return [{**_queue_fields(queue), "offset": offset, "reset": not dry_run} for queue, offset in targets.items()]


def _queue_fields(queue: MessageQueue) -> dict[str, str | int]:
    return {"topic": queue.topic, "broker": queue.broker, "queue_id": queue.queue_id}
