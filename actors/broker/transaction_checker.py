"""Ask the producers of open transactions how they ended.

Source: RocketMQ's TransactionalMessageCheckService and AbstractTransactionalMessageCheckListener.
"""

from __future__ import annotations

import random

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.transactions.half_message import real_queue, record_to_check
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
        #: The producer groups that could be asked at the last turn.
        self._connected: frozenset[str] = frozenset()

    def turn(self) -> None:
        """Send the checks that are due.

        Only those that are sent to a connected producer count. When the first producer of a group connects, it is asked
        about all transactions that waited for it. Raise StoreFull or StoreFailed: the next turn goes on.
        """
        transactions = self._core.transactions
        transactions.step()
        connections = {group: self._connections(group) for group in self._groups.producer_group_names()}
        connected = frozenset(group for group, found in connections.items() if found)
        transactions.wake(connected - self._connected)
        self._connected = connected
        for half, record in transactions.due_checks(connected, _ASKED_AT_ONCE):
            readers = [each for each in connections[half.producer_group] if each.writable.is_set()]
            if readers:
                random.choice(readers).push(self._command(half, record))
                transactions.asked(half)

    def _connections(self, producer_group: str) -> list[ServerConnection]:
        """Return the open connections of the producers of a group."""
        return [
            connection
            for client in self._groups.producers(producer_group)
            for connection in client.connections
            if isinstance(connection, ServerConnection) and not connection.is_gone
        ]

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
        return header.command(record_to_check(record, real_queue(record)))
