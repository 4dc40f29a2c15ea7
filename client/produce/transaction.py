"""Transactions of a producer: a message that consumers get only if the producer commits it.

`Producer.begin` stores the message as a half. Its broker decides by the first `commit` or `rollback` that it gets, and
asks the producers of the group (`transaction_checker`) if it gets none.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self

from raymq.actors.backoff import Backoff
from raymq.actors.errors import (
    Attempt,
    BrokerUnavailable,
    InvalidInput,
    OutcomeUnknown,
    RayMQError,
    TransactionEnded,
    WriteUnknown,
)
from raymq.actors.protocol import SendStatus, TransactionOutcome
from raymq.actors.sending.sender import SendOutcome
from raymq.actors.wire.commands.transaction_commands import end_command, end_status
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.message import Message
from raymq.client.produce.send_options import checked_timeout
from raymq.client.results import SendResult
from raymq.storage.records import message_limits
from raymq.storage.records import property_names as names
from raymq.storage.records.record import encode_properties

#: One attempt to tell the broker the outcome waits at most this long for its answer.
_ATTEMPT_SECONDS: Final = 3.0
#: The longest `check_after`: a year.
_MAX_CHECK_SECONDS: Final = 31_536_000


def half_of(message: Message, producer_group: str, check_after: int | None = None) -> Message:
    """Return the message that is sent as the half of `message`; `check_after` is in seconds.

    Raises:
        InvalidInput: the message is delayed, or its properties leave no room for those of a transaction.
    """
    if message.is_delayed:
        raise InvalidInput("message", "no delay_level and no deliver_at in a transaction", repr(message))
    half = copy.copy(message)
    added = {names.TRAN_MSG: "true", names.PGROUP: producer_group}
    if check_after is not None:
        added[names.CHECK_IMMUNITY_TIME] = str(arguments.whole("check_after", check_after, 1, _MAX_CHECK_SECONDS))
    own = message.own_properties + encode_properties(added)
    size = len(own) + message.key_pair_bytes
    if size > message_limits.MAX_PROPERTIES_BYTES:
        raise InvalidInput("properties", message_limits.PROPERTIES, size)
    half.__setstate__({"_key": message.unique_key, "own_properties": own})
    return half


class Transaction:
    """One open transaction. Thread-safe; the first decision counts.

    As a context manager it commits at the end, and rolls back if an exception leaves the block. A forked child that
    leaves the block ends nothing.

    Attributes:
        message: the message that was sent.
        result: the position of its half; `result.transaction_id` is the unique key.
        outcome: COMMIT or ROLLBACK once the broker has confirmed it, else UNKNOWN.
    """

    def __init__(
        self,
        mq: Connection,
        producer_group: str,
        message: Message,
        result: SendResult,
        sent: SendOutcome,
        timeout: float,
    ) -> None:
        """Initialize the transaction; `timeout` is the default of `commit` and `rollback`, in seconds."""
        self.message = message
        self.result = result
        self.outcome = TransactionOutcome.UNKNOWN
        self._mq = mq
        self._group = producer_group
        self._timeout = timeout
        self._address = sent.address
        self._physical_offset = int(sent.placed.physical_offsets[0])
        self._pid = os.getpid()

    def __repr__(self) -> str:
        """Return one line with the message id and the outcome."""
        return f"Transaction({self.result.message_id}, topic={self.message.topic!r}, {self.outcome.value})"

    def commit(self, timeout: float | None = None) -> None:
        """Make the message visible, and wait until that is stored.

        Args:
            timeout: seconds during which the broker is told again if it does not answer; None: the producer's.

        Raises:
            OutcomeUnknown: no answer came in time, or the broker's disk or replicas did not confirm. The broker may
                have committed; if not, it asks the producers of the group.
            TransactionEnded: the transaction was rolled back or given up.
            MessageNotFound: the half is lost, by a loss of power with `flush: async` or by an election.
            TopicNotFound: the topic was deleted meanwhile.
        """
        self._mq.run(self._end(TransactionOutcome.COMMIT, timeout))

    def rollback(self, timeout: float | None = None) -> None:
        """Drop the message, and wait until that is stored.

        Raises:
            OutcomeUnknown, TransactionEnded, MessageNotFound: as `commit`.
        """
        self._mq.run(self._end(TransactionOutcome.ROLLBACK, timeout))

    async def acommit(self, timeout: float | None = None) -> None:
        """Do `commit` for asyncio code, on any event loop."""
        await self._mq.arun(self._end(TransactionOutcome.COMMIT, timeout))

    async def arollback(self, timeout: float | None = None) -> None:
        """Do `rollback` for asyncio code, on any event loop."""
        await self._mq.arun(self._end(TransactionOutcome.ROLLBACK, timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over():
            return
        if error is None:
            self.commit()
        else:
            _note_failure(error, self.rollback)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over():
            return
        if error is None:
            await self.acommit()
            return
        try:
            await self.arollback()
        except RayMQError as failure:
            error.add_note(_not_rolled_back(failure))

    def _is_over(self) -> bool:
        """Return True after a decision, and in a forked child: the block ends nothing."""
        return self.outcome is not TransactionOutcome.UNKNOWN or os.getpid() != self._pid

    async def _end(self, outcome: TransactionOutcome, timeout: float | None) -> None:
        """Send the outcome to the broker until it answers. Runs on the connection's event loop."""
        tracer = self._mq.tracer
        with contextlib.nullcontext() if tracer is None else tracer.ending(outcome.value.lower(), self.message):
            await self._send_outcome(outcome, timeout)

    async def _send_outcome(self, outcome: TransactionOutcome, timeout: float | None) -> None:
        seconds = self._timeout if timeout is None else checked_timeout(timeout)
        if self.outcome is outcome:
            return
        if self.outcome is not TransactionOutcome.UNKNOWN:
            raise TransactionEnded(f"{self} has ended already and cannot be ended with {outcome.value}")
        broker, deadline = self.result.queue.broker, time.monotonic() + seconds
        backoff = Backoff(first=0.05, cap=1.0)
        attempts: list[Attempt] = []
        half = self.result.queue_offset, self._physical_offset
        while True:
            command = end_command(self._group, half, outcome, self.result.unique_key)
            began = time.monotonic()
            try:
                left = max(0.001, min(_ATTEMPT_SECONDS, deadline - began))
                answer = await self._mq.pool.request(self._address, command, left, eager=True)
                status = end_status(answer)
            except RayMQError as error:
                if not error.retriable and not isinstance(error, BrokerUnavailable | WriteUnknown):
                    raise
                elapsed = time.monotonic() - began
                attempts.append(Attempt(broker, self.result.queue, error.code, str(error), elapsed))
            else:
                if status is SendStatus.SEND_OK:
                    self.outcome = outcome
                    return
                elapsed = time.monotonic() - began
                attempts.append(Attempt(broker, self.result.queue, None, f"stored, but {status.value}", elapsed))
            wait = backoff.next_delay()
            if time.monotonic() + wait >= deadline:
                raise OutcomeUnknown(
                    f"{self}: no answer to {outcome.value}; the broker asks the producers of group {self._group}",
                    attempts,
                )
            await asyncio.sleep(wait)
            self._address = await _address_of(self._mq, broker, self._address)


class TransactionBlock:
    """What `Producer.transaction` returns: one `with` or `async with` begins and ends the transaction."""

    def __init__(
        self, begin: Callable[[], Transaction], abegin: Callable[[], Coroutine[Any, Any, Transaction]]
    ) -> None:
        self._begin = begin
        self._abegin = abegin
        self._open: Transaction | None = None
        #: Taken by the first `with`, also if two threads begin at the same time.
        self._unused = threading.Lock()

    def __enter__(self) -> Transaction:
        self._use()
        self._open = self._begin()
        return self._open

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._open is not None
        self._open.__exit__(kind, error, trace)

    async def __aenter__(self) -> Transaction:
        self._use()
        self._open = await self._abegin()
        return self._open

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._open is not None
        await self._open.__aexit__(kind, error, trace)

    def _use(self) -> None:
        if not self._unused.acquire(blocking=False):
            raise RuntimeError("producer.transaction(...) begins one transaction; call it again for another one")


async def _address_of(mq: Connection, broker: str, last: str) -> str:
    """Return the address of a group's master, or `last` if it is unknown."""
    try:
        return (await mq.routes.cluster()).masters.get(broker, last)
    except RayMQError:
        return last


def _note_failure(error: BaseException, rollback: Callable[[], None]) -> None:
    """Roll back; add a failure of that to `error` as a note."""
    try:
        rollback()
    except RayMQError as failure:
        error.add_note(_not_rolled_back(failure))


def _not_rolled_back(failure: RayMQError) -> str:
    return f"the transaction could not be rolled back, its broker asks the producers of the group: {failure}"
