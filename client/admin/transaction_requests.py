"""List the transactions that wait for a decision, and decide or resume them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from raymq.actors.errors import MessageNotFound
from raymq.actors.protocol import TransactionOutcome
from raymq.actors.wire.commands import transaction_commands
from raymq.actors.wire.commands.transaction_commands import ListedTransaction
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.requests import fan_out
from raymq.client.results import OpenTransaction
from raymq.storage.records import property_names as names

_PAGE: Final = 500
OPEN: Final = "open"
GIVEN_UP: Final = "given up"


async def all_of(mq: Connection, topic: str | None) -> list[OpenTransaction]:
    """Return the transactions of all brokers, oldest first; see `Admin.transactions`."""
    if topic is not None:
        arguments.text("topic", topic)
    now = time.time()
    found = [
        OpenTransaction(
            message=ReceivedMessage.from_record(listed.half, broker),
            producer_group=listed.half.properties.get(names.PGROUP, ""),
            age=max(0.0, now - listed.half.born_timestamp_ms / 1000),
            checks=listed.asked,
            state=state,
        )
        async for broker, state, listed in _listed(mq)
        if topic is None or listed.half.topic == topic
    ]
    return sorted(found, key=lambda each: -each.age)


async def end(mq: Connection, message_id: str, outcome: TransactionOutcome, *, dry_run: bool) -> None:
    """Commit or roll back an open transaction; see `Admin.commit_transaction`."""
    broker, state, half = await _find(mq, message_id)
    if dry_run:
        return
    if state == GIVEN_UP:
        broker, state, half = await _resume(mq, broker, half)
    position = half.half.queue_offset, half.half.physical_offset
    group, key = half.half.properties.get(names.PGROUP, ""), half.half.unique_key or ""
    command = partial(transaction_commands.end_command, group, position, outcome, key, from_check=True)
    await fan_out.request_with_retry(mq, (await fan_out.masters(mq))[broker], command, broker)


async def resume(mq: Connection, message_id: str, *, dry_run: bool) -> str:
    """Let the producers of a transaction be asked from the beginning; see `Admin.resume_transaction`."""
    broker, _, half = await _find(mq, message_id)
    if not dry_run:
        _, _, half = await _resume(mq, broker, half)
    return half.half.message_id


async def _resume(mq: Connection, broker: str, half: ListedTransaction) -> tuple[str, str, ListedTransaction]:
    """Resume a transaction, and return it with its new position."""
    command = partial(transaction_commands.resume_command, half.half.topic, half.half.message_id)
    await fan_out.request_with_retry(mq, (await fan_out.masters(mq))[broker], command, broker)
    return await _find(mq, half.half.unique_key or half.half.message_id)


async def _find(mq: Connection, message_id: str) -> tuple[str, str, ListedTransaction]:
    """Return broker, state and half of the transaction with this id or unique key.

    An open one comes before one that was given up.
    """
    wanted = arguments.text("message_id", message_id).upper()
    async for broker, state, listed in _listed(mq):
        if wanted in (listed.half.message_id, (listed.half.unique_key or "").upper()):
            return broker, state, listed
    raise MessageNotFound(
        f"no open transaction has the message id or unique key {message_id}: it is wrong, or was decided; "
        "Admin.transactions and `raymq transaction list` list all"
    )


async def _listed(mq: Connection) -> AsyncIterator[tuple[str, str, ListedTransaction]]:
    """Iterate over broker, state and half of all transactions.

    Raise the first error of a broker.
    """
    for state in (OPEN, GIVEN_UP):
        for broker, address in (await fan_out.masters(mq)).items():
            begin: int | None = 0
            while begin is not None:
                command = partial(
                    transaction_commands.list_command, given_up=state == GIVEN_UP, begin=begin, most=_PAGE
                )
                answer = await fan_out.request_with_retry(mq, address, command, broker)
                page, begin = transaction_commands.read_listed(answer)
                for each in page:
                    yield broker, state, each
