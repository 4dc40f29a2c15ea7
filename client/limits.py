"""What a producer refuses before anything is sent: every rule of the input, one a row. docs/limits.md shows this table.

The checks themselves stand where the values arrive (`raymq.client.message`, `raymq.actors.naming`,
`raymq.client.produce.options`); tests/unit/client/test_limits.py breaks each rule at its edge and compares error
and row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import InvalidInput, QueueNotFound, RayMQError
from raymq.actors.naming import MAX_GROUP_CHARACTERS, MAX_TOPIC_CHARACTERS, NAME_PATTERN, UNSENDABLE_TOPICS
from raymq.client.arguments import MOST_SECONDS
from raymq.client.produce.encoding import MAX_PART_BYTES
from raymq.storage.records.limits import DEFAULT_MESSAGE_BYTES, MOST_MESSAGE_BYTES
from raymq.storage.records.record import MAX_PROPERTIES_BYTES


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it is about, what is allowed, and the error of what is not. `field` is the error's `.field`."""

    field: str
    allowed: str
    error: type[RayMQError] = InvalidInput


RULES: Final = (
    Rule("topic", f"1 to {MAX_TOPIC_CHARACTERS} characters"),
    Rule("topic", f"characters of `{NAME_PATTERN.pattern}`".replace("|", r"\|")),
    Rule("topic", f"none of {', '.join(sorted(UNSENDABLE_TOPICS))}"),
    Rule("group", f"1 to {MAX_GROUP_CHARACTERS} characters of the same kind"),
    Rule("body", f"1 to {MOST_MESSAGE_BYTES:,} bytes, whatever the brokers allow"),
    Rule("body", f"at most the brokers' `max_message_bytes`, {DEFAULT_MESSAGE_BYTES:,} unless it is configured"),
    Rule("tags", "one tag: not blank, without `||`".replace("|", r"\|")),
    Rule("keys", "each key at least 1 character, without a blank"),
    Rule("keys", r"without `\x00`, `\x01`, `\x02`; so are tags and properties"),
    Rule("properties", "names that are not empty and not RocketMQ's or RayMQ's own"),
    Rule("properties", "values that are not empty: RocketMQ's readers leave such a property out"),
    Rule("properties", f"at most {MAX_PROPERTIES_BYTES:,} bytes in all, unique key, keys and tags included"),
    Rule("delay_level", "0 or more; what is above the highest level clamps"),
    Rule("deliver_at", "seconds since the epoch; not together with `delay_level`"),
    Rule("messages", "a batch: at least one message, all of one topic"),
    Rule("messages", "a batch: no delayed message"),
    Rule("sharding_key", "not together with `queue=`"),
    Rule("queue", "a writable queue of the message's topic", QueueNotFound),
    Rule("timeout", f"more than 0, at most {MOST_SECONDS:,.0f} seconds (a year)"),
    Rule("retries", "a whole number, 0 or more"),
    Rule("linger", "0 to the producer's `timeout`"),
)

#: Not a rule but a bound: batches and tables above it are cut, not refused.
PART_BYTES: Final = MAX_PART_BYTES


def table() -> str:
    """The rules as a Markdown table."""
    rows = [f"| `{rule.field}` | {rule.allowed} | `{rule.error.__name__}` |" for rule in RULES]
    return "\n".join(["| what | allowed | else |", "|---|---|---|", *rows])
