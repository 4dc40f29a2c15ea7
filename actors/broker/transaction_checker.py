"""Ask the producers of open transactions how they ended.

Source: RocketMQ's TransactionalMessageCheckService and AbstractTransactionalMessageCheckListener.
"""

from __future__ import annotations

import random

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.transactions.half_message import record_to_check
from raymq.actors.broker.core.transactions.open_halves import OpenHalf
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.transaction_headers import CheckTransactionState
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.records.record import Record

#: One turn asks about at most this many transactions, so that it never blocks the event loop for long.
_ASKED_AT_ONCE = 100


class TransactionChecker:
    """Sends the checks of one broker, on its event loop."""

    def __init__(self, core: BrokerCore, groups: ClientRegistry) -> None:
        self._core = core
        self._groups = groups
        #: The producer groups that had members at the last turn.
        self._connected: set[str] = set()

    def turn(self) -> None:
        """Send the checks that are due.

        Only those that are sent to a connected producer count. When the first producer of a group connects, it is asked
        about all transactions that waited for it. Raise StoreFull or StoreFailed: the next turn goes on.
        """
        transactions = self._core.transactions
        transactions.step()
        connected = self._groups.producer_group_names()
        if new := connected - self._connected:
            transactions.ask_soon(new)
        self._connected = connected
        for half, record in transactions.due_checks(_ASKED_AT_ONCE):
            connection = self._connection(half.producer_group)
            if connection is not None:
                connection.push(self._command(half, record))
                transactions.asked(half)

    def _connection(self, producer_group: str) -> ServerConnection | None:
        """Return the connection of a random producer of the group, or None."""
        connections = [
            connection
            for client in self._groups.producers(producer_group)
            for connection in client.connections
            if isinstance(connection, ServerConnection) and not connection.is_gone
        ]
        return random.choice(connections) if connections else None

    def _command(self, half: OpenHalf, record: Record) -> Command:
        header = CheckTransactionState(
            tran_state_table_offset=half.named.queue_offset,
            commit_log_offset=half.named.physical_offset,
            topic=half.topic,
            msg_id=half.unique_key,
            transaction_id=half.unique_key,
            offset_msg_id=record.message_id,
            broker=self._core.name,
        )
        return header.command(record_to_check(record, (half.topic, half.queue_id)))
