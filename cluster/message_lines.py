"""Show a message on one line, or its fields with a decoded body."""

from __future__ import annotations

from typing import Any

from raymq.client import ReceivedMessage, timestamps
from raymq.client.body_display import display_body
from raymq.cluster.output import escape_line_breaks, message_fields


def message_line(message: ReceivedMessage) -> str:
    """Return a message on one line: its time, place, tag, keys and body."""
    where = f"{message.queue.broker}/{message.queue.queue_id}@{message.queue_offset}"
    about = [*([f"[{message.tags}]"] if message.tags else []), *message.keys]
    shown = display_body(message.body, message.properties)
    body = message.body.decode("utf-8", "backslashreplace") if shown.format in ("text", "bytes") else shown.text
    return escape_line_breaks("  ".join([timestamps.shown(message.store_timestamp), where, *about, body]))


def readable_fields(message: ReceivedMessage) -> dict[str, Any]:
    """Return the fields of a message for people: a msgpack or Arrow body is decoded."""
    fields, shown = message_fields(message), display_body(message.body, message.properties)
    if shown.format in ("msgpack", "arrow"):
        fields.pop("body", None)
        fields.pop("body_base64", None)
        rows = "" if shown.rows is None else f" of {shown.rows} rows"
        return {**fields, f"body ({shown.format}{rows})": shown.text}
    return {**fields, "body_note": shown.note} if shown.note else fields
