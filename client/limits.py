"""What a producer refuses before anything is sent: every rule of the input, one a row. docs/limits.md shows this table.

The checks stand where the values arrive (`raymq.client.message`, `raymq.storage.records.table` for the rows of tables,
`raymq.actors.naming`, `raymq.client.produce`) and say in their errors what is allowed by the texts that stand here, or
in `raymq.storage.records.limits` where a store and a table's rows need them, too. tests/unit/client/test_limits.py
breaks each rule at its edge, in a message and in a row, and compares error and text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import InvalidInput, QueueNotFound, RayMQError
from raymq.actors.naming import MAX_GROUP_CHARACTERS, MAX_TOPIC_CHARACTERS, NAME_PATTERN, UNSENDABLE_TOPICS
from raymq.client.arguments import LOOKS_LIKE_MILLISECONDS, MOST_SECONDS, TIME
from raymq.storage.records import limits

ONE_TOPIC: Final = "at least one message, all of one topic"
AT_ONCE: Final = "no delayed message in a batch"
SHARDING_KEY: Final = "not together with `queue=`"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it is about, what is allowed, and the error of what is not.

    `field` is the error's `.field`, and `allowed` its `.limit` where that is one text for all of its errors; `more` is
    what the document says besides.
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
    Rule("body", limits.BODY, f"; {limits.MOST_MESSAGE_BYTES:,} bytes whatever the brokers allow"),
    Rule("body", f"1 to {limits.DEFAULT_MESSAGE_BYTES} bytes", ", or the brokers' `max_message_bytes`"),
    Rule("tags", limits.TAG),
    Rule("keys", limits.KEY),
    Rule("keys", limits.TEXT, "; so are tags and properties"),
    Rule("properties", limits.PROPERTY_NAME),
    Rule("properties", limits.PROPERTY_VALUE, ": RocketMQ's readers leave such a property out"),
    Rule("properties", limits.PROPERTIES),
    Rule("delay_level", limits.DELAY_LEVEL, "; what is above the highest level clamps"),
    Rule("deliver_at", TIME),
    Rule("deliver_at", LOOKS_LIKE_MILLISECONDS, ": more than 100 years ahead, as every time that a call takes"),
    Rule("deliver_at", limits.DUE),
    Rule("deliver_at", limits.DELIVER_AT),
    Rule("messages", ONE_TOPIC),
    Rule("messages", AT_ONCE),
    Rule("sharding_key", SHARDING_KEY),
    Rule("queue", "a writable queue of the message's topic", error=QueueNotFound),
    Rule("timeout", f"more than 0, at most {MOST_SECONDS:,.0f} seconds", " (a year)"),
    Rule("retries", "a whole number, 0 or more"),
    Rule("linger", "0 to the producer's `timeout`"),
)


def table() -> str:
    """The rules as a Markdown table."""
    rows = [f"| `{rule.field}` | {_cell(rule.allowed + rule.more)} | `{rule.error.__name__}` |" for rule in RULES]
    return "\n".join(["| what | allowed | else |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("||", "`||`").replace("|", r"\|")
