"""The pages that find messages and show one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web

from raymq.client import ReceivedMessage
from raymq.client.plain_data import to_plain_data
from raymq.client.timestamps import parse_time
from raymq.console.body_view import preview_body, view_body
from raymq.console.console_context import CONTEXT
from raymq.console.page_rendering import Page

_FOUND: Final = 64
#: The clocks of a producer and a broker may differ by so much.
_CLOCK_SECONDS: Final = 1.0


async def message_search(request: web.Request) -> Page:
    """Return the form, and the messages that carry a key or have a unique key."""
    context = request.app[CONTEXT]
    query = {name: request.query.get(name, "").strip() for name in ("topic", "key", "unique_key", "from", "to", "id")}
    if query["id"]:
        raise web.HTTPSeeOther(f"/messages/{query['id']}" if query["id"].isalnum() else "/messages")
    found: list[ReceivedMessage] | None = None
    not_asked: Iterable[str] = ()
    truncated = False
    if query["topic"] and query["unique_key"]:
        found = [await context.admin.aquery_by_unique_key(query["topic"], query["unique_key"])]
    elif query["topic"] and query["key"]:
        begin, end = (parse_time(name, query[name]) if query[name] else None for name in ("from", "to"))
        by_key = await context.admin.aquery_by_key(query["topic"], query["key"], begin, end, _FOUND)
        found, not_asked, truncated = by_key, by_key.not_asked, by_key.truncated
    data = {
        "query": query,
        "messages": None if found is None else [message_row(message) for message in found],
        "truncated": truncated,
        "not_asked": list(not_asked),
    }
    return Page("messages", "Find messages", data, section="messages")


def message_row(message: ReceivedMessage) -> dict[str, Any]:
    """Return the fields of a message for a list."""
    return {
        "message_id": message.message_id,
        "topic": message.topic,
        "broker": message.queue.broker,
        "queue_id": message.queue.queue_id,
        "offset": message.queue_offset,
        "store_timestamp": message.store_timestamp,
        "keys": message.keys,
        "tags": message.tags,
        "size": len(message.body),
        "preview": preview_body(message.body),
    }


def clock_lead(born: float, stored: float) -> float | None:
    """Return by how many seconds a message was born after it was stored.

    None unless clocks certainly differ.
    """
    lead = born - stored
    return lead if lead > _CLOCK_SECONDS else None


async def message(request: web.Request) -> Page:
    """Return one message with its decoded body and its whole life."""
    context = request.app[CONTEXT]
    wanted = request.match_info["message_id"]
    found = await context.admin.aquery_by_id(wanted)
    trace = to_plain_data(await context.admin.atrace_message(wanted))
    del trace["message"]  # the page has it already
    data = {
        **message_row(found),
        "stored_in": found.queue.topic,
        "unique_key": found.unique_key,
        "born_timestamp": found.born_timestamp,
        "reconsume_times": found.reconsume_times,
        "properties": found.properties,
        "system_properties": found.system_properties,
        "body": view_body(found.body, found.properties),
        "born_ahead": clock_lead(found.born_timestamp, found.store_timestamp),
        "trace": trace,
    }
    return Page("message", f"Message {wanted}", data, section="messages")
