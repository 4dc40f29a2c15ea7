"""The rules of the input that a producer checks before it sends, as a table.

docs/limits.md shows this table. The checks are where the values arrive (`raymq.client.message`,
`raymq.storage.records.record_table` for the rows of tables, `raymq.actors.naming`, `raymq.client.produce`). Their
errors state the limit with the texts defined here, or in `raymq.storage.records.message_limits` where a store and a
table's rows need them, too. tests/unit/client/test_limits.py breaks each rule at its limit, in a message and in a row,
and compares error and text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import InvalidInput, QueueNotFound, RayMQError
from raymq.actors.naming import MAX_GROUP_CHARACTERS, MAX_TOPIC_CHARACTERS, NAME_PATTERN, UNSENDABLE_TOPICS
from raymq.client.arguments import LOOKS_LIKE_MILLISECONDS, MAX_SECONDS, TIME
from raymq.storage.records import message_limits

ONE_TOPIC: Final = "at least one message, all of one topic"
AT_ONCE: Final = "no delayed message in a batch"
SHARDING_KEY: Final = "not together with `queue=`"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: a field, the allowed values, and the error for other values.

    `field` is the error's `.field`, and `allowed` its `.limit` where one text is the limit of all of its errors; `more`
    is text that only the document has.
    """

    field: str
    allowed: str
    more: str = ""
    error: type[RayMQError] = InvalidInput


RULES: Final = (
    Rule("topic", f"1 to {MAX_TOPIC_CHARACTERS} characters"),
    Rule("topic", f"characters of `{NAME_PATTERN.pattern}`"),
    Rule("topic", f"none of {', '.join(sorted(UNSENDABLE_TOPICS))}"),
    Rule("group", f"1 to {MAX_GROUP_CHARACTERS} characters of the same kind"),
    Rule("body", message_limits.BODY, f"; {message_limits.MAX_MESSAGE_BYTES:,} bytes whatever the brokers allow"),
    Rule("body", f"1 to {message_limits.DEFAULT_MESSAGE_BYTES} bytes", ", or the brokers' `max_message_bytes`"),
    Rule("tags", message_limits.TAG),
    Rule("keys", message_limits.KEY),
    Rule("keys", message_limits.TEXT, "; so are tags and properties"),
    Rule("properties", message_limits.PROPERTY_NAME),
    Rule("properties", message_limits.PROPERTY_VALUE, ": RocketMQ's readers ignore such a property"),
    Rule("properties", message_limits.PROPERTIES),
    Rule("delay_level", message_limits.DELAY_LEVEL, "; a level above the highest one counts as the highest"),
    Rule("deliver_at", TIME),
    Rule("deliver_at", LOOKS_LIKE_MILLISECONDS, ": more than 100 years ahead, as every time that a call takes"),
    Rule("deliver_at", message_limits.DUE),
    Rule("deliver_at", message_limits.DELIVER_AT),
    Rule("messages", ONE_TOPIC),
    Rule("messages", AT_ONCE),
    Rule("sharding_key", SHARDING_KEY),
    Rule("queue", "a writable queue of the message's topic", error=QueueNotFound),
    Rule("timeout", f"more than 0, at most {MAX_SECONDS:,.0f} seconds", " (a year)"),
    Rule("retries", "a whole number, 0 or more"),
    Rule("linger", "0 to the producer's `timeout`"),
)


def table() -> str:
    """Return the rules as a Markdown table."""
    rows = [f"| `{rule.field}` | {_cell(rule.allowed + rule.more)} | `{rule.error.__name__}` |" for rule in RULES]
    return "\n".join(["| what | allowed | else |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("||", "`||`").replace("|", r"\|")
