"""The commands `raymq transaction ...`, for transactions whose producers do not decide."""

from __future__ import annotations

import click

from raymq.client import Admin
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.output import body_preview, message_fields, print_fields, print_json, print_rows

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Check that it is possible, and change nothing.")


@click.group("transaction")
def transaction_commands() -> None:
    """List and decide transactions whose producers have not decided."""


@transaction_commands.command("list")
@click.argument("topic", required=False)
@json_option
@click.pass_obj
def list_transactions(finder: Finder, topic: str | None, as_json: bool) -> None:
    """List undecided transactions of TOPIC, or of all topics, oldest first."""
    with finder.connect() as mq, Admin(mq) as admin:
        found = admin.transactions(topic)
    if as_json:
        print_json(
            [
                {
                    "producer_group": each.producer_group,
                    "state": each.state,
                    "age": each.age,
                    "checks": each.checks,
                    "message": message_fields(each.message),
                }
                for each in found
            ]
        )
        return
    rows = [
        {
            "message_id": each.message.message_id,
            "topic": each.message.topic,
            "keys": " ".join(each.message.keys),
            "producer_group": each.producer_group,
            "state": each.state,
            "age": each.age,
            "checks": each.checks,
            "body": body_preview(each.message.body),
        }
        for each in found
    ]
    print_rows(rows, as_json=False, empty="no open transaction")


@transaction_commands.command("commit")
@click.argument("message_id")
@_DRY_RUN
@json_option
@click.pass_obj
def commit_transaction(finder: Finder, message_id: str, dry_run: bool, as_json: bool) -> None:
    """Commit the transaction MESSAGE_ID, a message id or unique key: consumers get its message."""
    with finder.connect() as mq, Admin(mq) as admin:
        admin.commit_transaction(message_id, dry_run=dry_run)
    _print_state(message_id, "committed", dry_run=dry_run, as_json=as_json)


@transaction_commands.command("rollback")
@click.argument("message_id")
@_DRY_RUN
@json_option
@click.pass_obj
def rollback_transaction(finder: Finder, message_id: str, dry_run: bool, as_json: bool) -> None:
    """Roll back the transaction MESSAGE_ID, a message id or unique key: its message is dropped."""
    with finder.connect() as mq, Admin(mq) as admin:
        admin.rollback_transaction(message_id, dry_run=dry_run)
    _print_state(message_id, "rolled back", dry_run=dry_run, as_json=as_json)


@transaction_commands.command("resume")
@click.argument("message_id")
@_DRY_RUN
@json_option
@click.pass_obj
def resume_transaction(finder: Finder, message_id: str, dry_run: bool, as_json: bool) -> None:
    """Ask about the transaction MESSAGE_ID again, also if it was given up; print its new id."""
    with finder.connect() as mq, Admin(mq) as admin:
        current_id = admin.resume_transaction(message_id, dry_run=dry_run)
    _print_state(current_id, "resumed", dry_run=dry_run, as_json=as_json)


def _print_state(message_id: str, state: str, *, dry_run: bool, as_json: bool) -> None:
    print_fields({"message_id": message_id, "state": f"would be {state}" if dry_run else state}, as_json=as_json)
