"""The commands `raymq delay ...`, for messages that wait for their time."""

from __future__ import annotations

import sys
from typing import Any

import click

from raymq.client import Admin, DelayedMessage, RecallStatus
from raymq.client.body_display import display_body
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.output import (
    message_fields,
    print_fields,
    print_json,
    print_rows,
    shortened,
    warn_truncated,
)


@click.group("delay")
def delay_commands() -> None:
    """List and recall messages that wait for their time."""


@delay_commands.command("list")
@click.option("--topic", help="Only messages that will be delivered to this topic.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True)
@json_option
@click.pass_obj
def list_delayed(finder: Finder, topic: str | None, limit: int, as_json: bool) -> None:
    """List messages and retries that wait for their time, the next due first."""
    with finder.connect() as mq, Admin(mq) as admin:
        found = admin.delayed_messages(topic, limit)
    warn_truncated(found)
    if as_json:
        print_json([_fields(each) for each in found])
        return
    rows = [
        {
            "deliver_at": each.deliver_at,
            "topic": each.message.topic,
            "retry_of": each.retry_of,
            "unique_key": each.message.unique_key,
            "keys": " ".join(each.message.keys),
            "recallable": "yes" if each.recall_handle else "no",
            "body": shortened(display_body(each.message.body, each.message.properties).text),
        }
        for each in found
    ]
    print_rows(rows, as_json=False, empty="no message waits for its time")


@delay_commands.command("recall")
@click.argument("message", metavar="HANDLE|ID")
@json_option
@click.pass_obj
def recall_message(finder: Finder, message: str, as_json: bool) -> None:
    """Withdraw a message that waits for its delivery time.

    HANDLE is the recall handle that its send returned; ID is its message id or unique key, as `raymq delay list --json`
    shows them. The exit code is 1 unless the message is withdrawn, now or before.
    """
    with finder.connect() as mq, Admin(mq) as admin:
        status = admin.recall(message)
    print_fields({"message": message, "status": status.value}, as_json=as_json)
    if status is not RecallStatus.WITHDRAWN:
        sys.exit(1)


def _fields(each: DelayedMessage) -> dict[str, Any]:
    return {
        **message_fields(each.message),
        "deliver_at": each.deliver_at,
        "retry_of": each.retry_of,
        "recall_handle": each.recall_handle,
    }
