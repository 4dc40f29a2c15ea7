"""The page of delayed messages, and their recall."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from raymq.client import DelayedMessage, InvalidInput, RecallStatus
from raymq.console.body_view import preview_body
from raymq.console.console_context import CONTEXT
from raymq.console.form_fields import read_fields
from raymq.console.page_rendering import Page

_SHOWN: Final = 100


async def delayed(request: web.Request) -> Page:
    """Return the messages that wait for their time, the next ones first.

    Retries that wait are among them.
    """
    context = request.app[CONTEXT]
    found = await context.admin.adelayed_messages(limit=_SHOWN)
    data = {
        "delayed": [{**_row(each), "recalled": each.recall_handle in context.recalled} for each in found],
        "truncated": found.truncated,
        "not_asked": list(found.not_asked),
    }
    return Page("delayed", "Delayed messages", data, section="delayed")


def _row(waiting: DelayedMessage) -> dict[str, Any]:
    message = waiting.message
    return {
        "message_id": message.message_id,
        "unique_key": message.unique_key,
        "topic": message.topic,
        "retry_of": waiting.retry_of,
        "broker": message.queue.broker,
        "deliver_at": waiting.deliver_at,
        "store_timestamp": message.store_timestamp,
        "keys": message.keys,
        "tags": message.tags,
        "preview": preview_body(message.body),
        "recall_handle": waiting.recall_handle,
    }


async def recall(request: web.Request) -> Page:
    """Withdraw a delayed message by its handle."""
    context = request.app[CONTEXT]
    handle = (await read_fields(request)).text("handle").strip()
    if not handle:
        raise InvalidInput("handle", "the recall handle of a delayed message", "nothing")
    status = await context.admin.arecall(handle)
    if status is RecallStatus.WITHDRAWN:
        context.recalled.append(handle)
    return Page("recalled", "Recall", {"handle": handle, "status": status.value}, section="delayed")
