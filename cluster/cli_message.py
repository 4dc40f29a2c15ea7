"""`raymq message ...`."""

from __future__ import annotations

import os

import click

from raymq.client import Admin, Message, Producer
from raymq.client.timestamps import AS_TEXT
from raymq.cluster.cli_context import Finder, Time, json_option
from raymq.cluster.output import message_fields, plain, print_fields, print_json, say_truncated


@click.group("message")
def message_commands() -> None:
    """Send messages, get them by id, find them by key."""


@message_commands.command("send")
@click.argument("topic")
@click.option("--body", required=True, help="The text to send.")
@click.option("--key", "keys", multiple=True, help="What it is found by; may be given several times.")
@click.option("--tag", help="What subscriptions filter by.")
@json_option
@click.pass_obj
def send_message(finder: Finder, topic: str, body: str, keys: tuple[str, ...], tag: str | None, as_json: bool) -> None:
    """Send one message to TOPIC. Bytes of --body that are no text are sent as they are."""
    with finder.connect() as mq, Producer(mq, "raymq-cli") as producer:
        result = producer.send(Message(topic, os.fsencode(body), tags=tag, keys=keys))
    print_fields(plain(result), as_json=as_json)


@message_commands.command("get")
@click.argument("message_id")
@json_option
@click.pass_obj
def get_message(finder: Finder, message_id: str, as_json: bool) -> None:
    """The message with the id MESSAGE_ID (32 hex digits)."""
    with finder.connect() as mq, Admin(mq) as admin:
        message = admin.query_by_id(message_id)
    print_fields(message_fields(message), as_json=as_json)


@message_commands.command("query")
@click.argument("topic")
@click.option("--key", required=True)
@click.option("--begin", type=Time(), help=f"Stored at this time or later: {AS_TEXT}.")
@click.option("--end", type=Time(), help="Stored at this time or earlier.")
@click.option("--limit", default=64, show_default=True)
@json_option
@click.pass_obj
def query_messages(
    finder: Finder, topic: str, key: str, begin: float | None, end: float | None, limit: int, as_json: bool
) -> None:
    """Messages of TOPIC that carry a key, newest first."""
    with finder.connect() as mq, Admin(mq) as admin:
        messages = admin.query_by_key(topic, key, begin, end, limit)
    say_truncated(messages)
    found = [message_fields(message) for message in messages]
    if as_json:
        print_json(found)
        return
    for fields in found:
        print_fields(fields, as_json=False)
        click.echo()
    if not found:
        click.echo(f"no message of {topic} carries the key {key}")
