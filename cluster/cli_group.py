"""`raymq group ...`."""

from __future__ import annotations

from datetime import datetime

import click

from raymq.client import Admin, MessageQueue
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.output import print_rows

_topic = click.argument("topic")
_dry_run = click.option("--dry-run", is_flag=True, help="Say what would be gone to, and change nothing.")
_SECONDS = "seconds since the epoch, or a local time as 2024-05-01T12:00:00"


class Timestamp(click.ParamType[float]):
    """A point in time: seconds since the epoch, or ISO 8601 (local where it names no zone)."""

    name = "time"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """In seconds since the epoch."""
        try:
            return float(value)
        except ValueError:
            pass
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            self.fail(f"{value!r} is neither {_SECONDS}", param, ctx)


@click.group("group")
def group_commands() -> None:
    """Look at consumer groups and send them elsewhere."""


@group_commands.command("list")
@json_option
@click.pass_obj
def list_groups(finder: Finder, as_json: bool) -> None:
    """The consumer groups of the cluster."""
    with finder.connect() as mq, Admin(mq) as admin:
        rows = [{"group": group} for group in admin.groups()]
    print_rows(rows, as_json=as_json, empty="no group yet")


@group_commands.command("progress")
@click.argument("name")
@json_option
@click.pass_obj
def group_progress(finder: Finder, name: str, as_json: bool) -> None:
    """How far group NAME is in each queue."""
    with finder.connect() as mq, Admin(mq) as admin:
        progress = admin.group_progress(name)
    rows = [
        {
            **_queue_fields(queue),
            "committed_offset": found.committed_offset,
            "max_offset": found.max_offset,
            "lag": found.lag,
            "owner": found.owner,
        }
        for queue, found in progress.items()
    ]
    print_rows(rows, as_json=as_json, empty="no queue")


@group_commands.command("reset")
@click.argument("name")
@_topic
@click.option("--to", "timestamp", required=True, type=Timestamp(), help=f"{_SECONDS}; the future is the end.")
@_dry_run
@json_option
@click.pass_obj
def reset_group(finder: Finder, name: str, topic: str, timestamp: float, dry_run: bool, as_json: bool) -> None:
    """Send group NAME to the first messages of TOPIC stored at a time or later; it may be running."""
    with finder.connect() as mq, Admin(mq) as admin:
        targets = admin.reset_offset_by_time(name, topic, timestamp, dry_run=dry_run)
    _print_targets(targets, dry_run=dry_run, as_json=as_json)


@group_commands.command("skip")
@click.argument("name")
@_topic
@_dry_run
@json_option
@click.pass_obj
def skip_messages(finder: Finder, name: str, topic: str, dry_run: bool, as_json: bool) -> None:
    """Send group NAME behind the last message of TOPIC."""
    with finder.connect() as mq, Admin(mq) as admin:
        targets = admin.skip(name, topic, dry_run=dry_run)
    _print_targets(targets, dry_run=dry_run, as_json=as_json)


def _print_targets(targets: dict[MessageQueue, int], *, dry_run: bool, as_json: bool) -> None:
    rows = [{**_queue_fields(queue), "offset": offset, "reset": not dry_run} for queue, offset in targets.items()]
    print_rows(rows, as_json=as_json, empty="no queue")


def _queue_fields(queue: MessageQueue) -> dict[str, str | int]:
    return {"topic": queue.topic, "broker": queue.broker, "queue_id": queue.queue_id}
