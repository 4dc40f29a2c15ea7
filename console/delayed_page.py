"""The page of delayed messages, and their recall."""

from __future__ import annotations

import contextlib
import heapq
from typing import Any, Final

from aiohttp import web

from raymq.actors.naming import TIMER_TOPIC
from raymq.actors.recall_handle import RecallHandle
from raymq.client import Admin, InvalidInput, MessageQueue, ReceivedMessage, TopicNotFound
from raymq.console.body_view import preview_body
from raymq.console.console_context import CONTEXT
from raymq.console.form_fields import read_fields
from raymq.console.page_rendering import Page
from raymq.storage.records import property_names as names

#: The newest timer messages of each broker that are looked at.
_LOOKED_AT: Final = 500
_SHOWN: Final = 100


async def delayed(request: web.Request) -> Page:
    """Return timer messages whose time has not come, the next ones first."""
    context = request.app[CONTEXT]
    try:
        waiting, is_complete = await _waiting(context.admin, context.clock())
    except TopicNotFound:  # No message with a delivery time was ever sent.
        waiting, is_complete = [], True
    data = {
        "delayed": heapq.nsmallest(_SHOWN, waiting, key=lambda row: (row["deliver_at"], row["unique_key"])),
        "total": len(waiting),
        "complete": is_complete,
        "looked_at_per_broker": _LOOKED_AT,
    }
    return Page("delayed", "Delayed messages", data, section="delayed")


async def _waiting(admin: Admin, now: float) -> tuple[list[dict[str, Any]], bool]:
    """Return the waiting messages among the newest stored ones, and whether these were all that are stored."""
    stats = await admin.atopic_stats(TIMER_TOPIC)
    start = {
        queue: max(each.min_offset, each.max_offset - _LOOKED_AT)
        for queue, each in stats.items()
        if each.max_offset > each.min_offset
    }
    if not start:
        return [], True
    found = []
    async with contextlib.aclosing(admin.atail(TIMER_TOPIC, start, follow=False)) as messages:  # type: ignore[type-var]
        async for message in messages:
            row = _row(message)
            if row is not None and row["deliver_at"] > now:
                found.append(row)
    return found, all(start[queue] == stats[queue].min_offset for queue in start)


def _row(message: ReceivedMessage) -> dict[str, Any] | None:
    """Return a timer message; None for an entry that withdraws another one, or that is no message of a user."""
    system = message.system_properties
    due_ms, topic = system.get(names.TIMER_OUT_MS, ""), system.get(names.REAL_TOPIC)
    if not due_ms.isdecimal() or topic is None or names.TIMER_DEL_UNIQKEY in system or not message.unique_key:
        return None
    return {
        "message_id": message.message_id,
        "unique_key": message.unique_key,
        "topic": topic,
        "broker": message.queue.broker,
        "deliver_at": int(due_ms) / 1000,
        "store_timestamp": message.store_timestamp,
        "keys": message.keys,
        "tags": message.tags,
        "preview": preview_body(message.body),
        "recall_handle": _handle(message.queue, topic, int(due_ms), message.unique_key),
    }


def _handle(queue: MessageQueue, topic: str, due_ms: int, unique_key: str) -> str:
    return RecallHandle(topic, queue.broker, due_ms, unique_key).encode()


async def recall(request: web.Request) -> Page:
    """Withdraw a delayed message by its handle."""
    context = request.app[CONTEXT]
    handle = (await read_fields(request)).text("handle").strip()
    if not handle:
        raise InvalidInput("handle", "the recall handle of a delayed message", "nothing")
    status = await context.producer.arecall(handle)
    return Page("recalled", "Recall", {"handle": handle, "status": status.value}, section="delayed")
