"""The commands `raymq message ...`."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from itertools import islice, repeat
from operator import itemgetter
from typing import IO, Any, Final

import click

from raymq.client import (
    Admin,
    DeadMessage,
    InvalidInput,
    Message,
    OutcomeUnknown,
    Producer,
    RayMQError,
    SendResult,
)
from raymq.client.plain_data import to_plain_data
from raymq.client.timestamps import AS_TEXT, parse_duration
from raymq.cluster.cli_context import Finder, Time, json_option
from raymq.cluster.message_lines import message_line, readable_fields
from raymq.cluster.output import (
    message_fields,
    print_fields,
    print_json,
    print_rows,
    warn_truncated,
)
from raymq.cluster.shell_remedies import in_shell_words
from raymq.storage.records import message_limits

#: The seconds that lines are gathered into one request, and the most lines without a response.
_LINGER_SECONDS: Final = 0.005
_MAX_UNDER_WAY: Final = 2_000


@click.group("message")
def message_commands() -> None:
    """Send messages, follow a topic, get, find and trace messages."""


@message_commands.command("send")
@click.argument("topic")
@click.option("--body", help="The text to send.")
@click.option(
    "--file",
    "source",
    type=click.File("rb"),
    help="Send each line of a file, - for stdin: as a body, or as a message where it is a JSON object with a `body`.",
)
@click.option("--key", "keys", multiple=True, help="Key by which the message is found; may be given several times.")
@click.option("--tag", help="Tag by which subscriptions filter.")
@click.option("--property", "pairs", multiple=True, help="Property as name=value; may be given several times.")
@click.option("--delay", help="Deliver the message after this time: 90s, 15m, 2h, 1d.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Send the message this many times.")
@json_option
@click.pass_obj
def send_message(
    finder: Finder,
    topic: str,
    body: str | None,
    source: IO[bytes] | None,
    keys: tuple[str, ...],
    tag: str | None,
    pairs: tuple[str, ...],
    delay: str | None,
    count: int,
    as_json: bool,
) -> None:
    """Send messages to TOPIC: --body, or the lines of --file.

    Bytes that are not text are sent unchanged. A line of a file that is a JSON object with `body` or `body_base64` may
    have `keys`, `tags` and `properties`, as `raymq dlq export` writes them; fields that it omits come from the options.
    Any other line is a body.
    """
    if (body is None) == (source is None):
        raise click.UsageError("give --body or --file")
    if source is not None and count > 1:
        raise click.UsageError("--count needs --body")
    seconds = None if delay is None else parse_duration("--delay", delay, most=message_limits.MAX_DAYS_AHEAD * 86_400.0)
    common = _MessageTemplate(topic, keys, tag, _properties(pairs), seconds)
    with finder.connect() as mq:
        if source is None and count == 1:
            with Producer(mq, "raymq-cli") as producer:
                result = producer.send(common.message(os.fsencode(body or "")))
            print_fields(to_plain_data(result), as_json=as_json)
            return
        lines = repeat(os.fsencode(body or ""), count) if source is None else (line.rstrip(b"\r\n") for line in source)
        with Producer(mq, "raymq-cli", linger=_LINGER_SECONDS) as producer:
            sent, failed = _send_lines(producer, common, lines, parse=source is not None)
    summary = {
        "topic": topic,
        "sent": sent,
        "failed": [{"line": line, "error": in_shell_words(str(error))} for line, error in failed],
    }
    print_fields(summary if as_json else {"topic": topic, "sent": sent, "failed": len(failed)}, as_json=as_json)
    for words, some in _by_outcome(failed):
        what = "line" if source is not None else "message"
        click.echo(f"{what}{'s' if len(some) > 1 else ''} {_ranges(some)} {words}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


#: The fields of a line: those that `raymq dlq export` and `raymq message tail --json` write.
_LINE_FIELDS: Final = {"body_base64", *(each.name for each in fields(DeadMessage))}
_LINE_WORDS: Final = "body (text) or body_base64, and perhaps keys, tags and properties"


@dataclass(frozen=True, slots=True)
class _MessageTemplate:
    """The common fields of all messages of a command; `delay` is in seconds."""

    topic: str
    keys: Sequence[str]
    tag: str | None
    properties: Mapping[str, str]
    delay: float | None

    def message(self, body: bytes, own: Mapping[str, Any] | None = None) -> Message:
        """Create a message from a body and the fields of a line.

        Raise InvalidInput if a field is invalid.
        """
        own = own or {}
        keys = own.get("keys", self.keys)
        return Message(
            self.topic,
            body,
            tags=own.get("tags", self.tag),
            keys=(keys,) if isinstance(keys, str) else tuple(keys),
            properties={**self.properties, **own.get("properties", {})},
            deliver_at=None if self.delay is None else time.time() + self.delay,
        )

    def parsed(self, line: bytes) -> Message:
        """Create the message of a file's line. Raise InvalidInput if the line is invalid."""
        try:
            own = json.loads(line) if line.lstrip().startswith(b"{") else None
        except ValueError:  # The body only looks like JSON.
            own = None
        if not isinstance(own, dict) or not {"body", "body_base64"} & own.keys():
            return self.message(line)
        if unknown := own.keys() - _LINE_FIELDS:
            raise InvalidInput(
                "line", f"an object with {_LINE_WORDS}", f"one that also has {', '.join(sorted(unknown))}"
            )
        try:
            return self.message(
                base64.b64decode(own["body_base64"]) if "body" not in own else own["body"].encode(), own
            )
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput("line", f"an object with {_LINE_WORDS}", line[:80]) from error


def _send_lines(
    producer: Producer, common: _MessageTemplate, lines: Iterable[bytes], *, parse: bool
) -> tuple[int, list[tuple[int, RayMQError]]]:
    """Send each line; return the number of stored lines, and the failures.

    A failure is the number of the line (counted from 1) and the error; after some errors it is unknown whether the line
    is stored.
    """
    waiting: deque[tuple[int, Future[SendResult]]] = deque()
    failed: list[tuple[int, RayMQError]] = []
    sent = 0

    def settle(most: int) -> None:
        nonlocal sent
        while len(waiting) > most:
            number, future = waiting.popleft()
            try:
                future.result()
                sent += 1
            except RayMQError as error:
                failed.append((number, error))

    for number, line in enumerate(lines, 1):
        if parse and not line.strip():
            continue
        try:
            waiting.append((number, producer.send_async(common.parsed(line) if parse else common.message(line))))
        except RayMQError as error:
            failed.append((number, error))
        settle(_MAX_UNDER_WAY)
    settle(0)
    return sent, sorted(failed, key=itemgetter(0))


def _properties(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--property is name=value, not {pair!r}")
        found[name] = value
    return found


def _by_outcome(failed: Sequence[tuple[int, RayMQError]]) -> list[tuple[str, list[int]]]:
    """Return a description of each failure, with the numbers of its lines."""
    found: dict[str, list[int]] = {}
    for number, error in failed:
        outcome = "may or may not be stored" if isinstance(error, OutcomeUnknown) else "not stored"
        words = f"{outcome}: {type(error).__name__}: {in_shell_words(str(error))}"
        found.setdefault(words, []).append(number)
    return list(found.items())


def _ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as "3-7, 9"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


@message_commands.command("tail")
@click.argument("topic")
@click.option("--from", "start", default="latest", show_default=True, help=f"earliest, latest, or a time: {AS_TEXT}.")
@click.option("--tag", default="*", help='Only messages with this tag; "a || b" for several.')
@click.option("--follow", is_flag=True, help="Go on with new messages, until Ctrl-C.")
@click.option("--limit", type=click.IntRange(1), help="End after this many messages.")
@json_option
@click.pass_obj
def tail_topic(
    finder: Finder, topic: str, start: str, tag: str, follow: bool, limit: int | None, as_json: bool
) -> None:
    """Show the messages of TOPIC from a position on, without creating a group.

    Without --follow the command ends at the current end of the topic. With --follow --json each message is one line of
    JSON.
    """
    try:
        place: str | float = start if start in ("earliest", "latest") else Time().convert(start, None, None)
    except click.BadParameter as error:
        error.param_hint = "--from"
        raise
    shown = 0
    found: list[dict[str, Any]] = []
    with (
        contextlib.suppress(KeyboardInterrupt),
        finder.connect() as mq,
        Admin(mq) as admin,
        contextlib.closing(admin.tail(topic, place, tag, follow=follow)) as messages,
    ):
        for message in messages if limit is None else islice(messages, limit):
            shown += 1
            if not as_json:
                click.echo(message_line(message))
            elif follow:
                print_json(message_fields(message))
            else:
                found.append(message_fields(message))
            if follow:
                sys.stdout.flush()
    if as_json and not follow:
        print_json(found)
    elif not shown and not follow:
        click.echo(
            "no message from that time on: --from earliest shows stored messages, --follow waits for new ones", err=True
        )


@message_commands.command("get")
@click.argument("message_id")
@json_option
@click.pass_obj
def get_message(finder: Finder, message_id: str, as_json: bool) -> None:
    """Show the message with the id MESSAGE_ID (32 hex digits)."""
    with finder.connect() as mq, Admin(mq) as admin:
        message = admin.query_by_id(message_id)
    print_fields(message_fields(message) if as_json else readable_fields(message), as_json=as_json)


@message_commands.command("trace")
@click.argument("message_id")
@click.option("--topic", help="Where a unique key is searched; by default in all topics.")
@json_option
@click.pass_obj
def trace_message(finder: Finder, message_id: str, topic: str | None, as_json: bool) -> None:
    """Show what became of a message: its copies, what its groups have made of it, retries and dead letters.

    MESSAGE_ID is a message id or a unique key.
    """
    with finder.connect() as mq, Admin(mq) as admin:
        found = admin.trace_message(message_id, topic=topic)
    if as_json:
        fields = {**to_plain_data(found), "message": message_fields(found.message)}
        print_json(fields if found.not_asked else {name: each for name, each in fields.items() if name != "not_asked"})
        return
    print_fields(readable_fields(found.message), as_json=False)
    for title, rows in (
        ("stored", found.stored),
        ("consumed", found.consumed),
        ("retries", found.retries),
        ("dead letters", found.dead_letters),
        ("redrives", found.redrives),
    ):
        click.echo(f"\n{title}:")
        print_rows([to_plain_data(row) for row in rows], as_json=False, empty="  none")
    if found.not_asked:
        click.echo(f"not reachable, so their part is missing: {', '.join(found.not_asked)}", err=True)


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
    """Show the messages of TOPIC that have a key, newest first."""
    with finder.connect() as mq, Admin(mq) as admin:
        messages = admin.query_by_key(topic, key, begin, end, limit)
    warn_truncated(messages)
    found = [message_fields(message) for message in messages]
    if as_json:
        print_json(found)
        return
    for each in found:
        print_fields(each, as_json=False)
        click.echo()
    if not found:
        click.echo(f"no message of {topic} has the key {key}")
