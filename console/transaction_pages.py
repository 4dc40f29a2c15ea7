"""The page of transactions that wait for a decision, and the decisions."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from raymq.console.body_view import preview_body
from raymq.console.console_context import CONTEXT
from raymq.console.form_fields import read_fields
from raymq.console.page_rendering import Page
from raymq.console.paging import page_of


async def transactions(request: web.Request) -> Page:
    """Return the undecided transactions of all topics or of one, oldest first."""
    context = request.app[CONTEXT]
    topic = request.query.get("topic", "").strip()
    page = page_of(await context.admin.atransactions(topic or None), request.query.get("page"))
    rows: list[dict[str, Any]] = [
        {
            "message_id": each.message.message_id,
            "unique_key": each.message.unique_key,
            "topic": each.message.topic,
            "broker": each.message.queue.broker,
            "keys": each.message.keys,
            "producer_group": each.producer_group,
            "state": each.state,
            "age": each.age,
            "checks": each.checks,
            "size": len(each.message.body),
            "preview": preview_body(each.message.body),
        }
        for each in page.items
    ]
    data = {"topic": topic, **page.as_data(), "transactions": rows}
    return Page("transactions", "Transactions", data, section="transactions")


async def commit(request: web.Request) -> Page:
    """Commit a transaction."""
    message_id = await _message_id(request)
    await request.app[CONTEXT].admin.acommit_transaction(message_id)
    return _decided(message_id, "committed")


async def rollback(request: web.Request) -> Page:
    """Roll a transaction back."""
    message_id = await _message_id(request)
    await request.app[CONTEXT].admin.arollback_transaction(message_id)
    return _decided(message_id, "rolled back")


async def resume(request: web.Request) -> Page:
    """Let the producers of a transaction be asked again."""
    message_id = await _message_id(request)
    return _decided(await request.app[CONTEXT].admin.aresume_transaction(message_id), "resumed")


async def _message_id(request: web.Request) -> str:
    return (await read_fields(request)).text("message_id")


def _decided(message_id: str, state: str) -> Page:
    return Page(
        "transaction_decided",
        f"Transaction {state}",
        {"message_id": message_id, "state": state},
        section="transactions",
    )
