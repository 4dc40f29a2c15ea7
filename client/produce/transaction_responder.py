"""Answer a broker's questions about open transactions of a producer group.

The producer makes itself known by heartbeats to every broker. A broker that has an open transaction of the group asks
one of its producers, which calls the program's checker and sends the outcome back. Runs on the connection's event loop;
the checker runs on threads of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import TransactionOutcome
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.group_commands import producer_heartbeat_command, unregister_producer_command
from raymq.actors.wire.commands.transaction_commands import end_command
from raymq.actors.wire.connection_pool import WireConnection
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.transaction_headers import CheckTransactionState
from raymq.client.connection import Connection
from raymq.client.listener_threads import ListenerThreads
from raymq.client.message import ReceivedMessage
from raymq.storage.records import property_names as names
from raymq.storage.records.record import decode

#: Decides a transaction of a process that ended, or that could not tell the broker. It may be a coroutine function.
TransactionChecker = Callable[[ReceivedMessage], TransactionOutcome | Awaitable[TransactionOutcome]]

#: How often a broker gets a heartbeat; a broker forgets a producer after 120 s.
_HEARTBEAT_SECONDS: Final = 10.0
#: The pause between two looks for brokers without a heartbeat; the first after an event comes sooner.
_LOOK_SECONDS: Final = 1.0
_REQUEST_SECONDS: Final = 3.0
_THREADS: Final = 4
#: Further questions are not answered while this many wait; the broker asks again.
_MAX_WAITING: Final = 2_000
#: What the checker returned, or what it raised.
_Result = tuple[Any, BaseException | None]
#: A half to decide, and where the result goes.
_Question = tuple[ReceivedMessage, "asyncio.Future[_Result]"]
_log = logging.getLogger("raymq.producer")


class TransactionCheckResponder:
    """The heartbeats and answers of one producer with a checker."""

    def __init__(self, mq: Connection, producer_group: str, checker: TransactionChecker) -> None:
        self._mq = mq
        self._group = producer_group
        self._checker = checker
        self._client_id = f"{mq.pool.local_host}@{uuid.uuid4().hex}"
        #: The connection of the last heartbeat, and its time, by the broker's address.
        self._greeted: dict[str, tuple[WireConnection, float]] = {}
        self._woken = asyncio.Event()
        self._threads = ListenerThreads[_Question](_THREADS, "raymq-transaction-checker", self._call)
        self._answers: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Send the first heartbeats, and go on in the background."""
        self._mq.listen(self._pushed)
        await self._greet_all()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """End the background work, and leave the producer group."""
        self._mq.unlisten(self._pushed)
        for task in (self._task, *self._answers):
            if task is not None:
                task.cancel()
        self._threads.close()
        command = unregister_producer_command(self._client_id, self._group)
        await asyncio.gather(
            *(connection.request(command, _REQUEST_SECONDS) for connection, _ in self._greeted.values()),
            return_exceptions=True,
        )

    async def greet(self, address: str) -> None:
        """Make sure that the broker at `address` knows the producer.

        Raise RayMQError if it does not answer.
        """
        loop = asyncio.get_running_loop()
        connection = await self._mq.pool.get(address, _REQUEST_SECONDS)
        known, at = self._greeted.get(address, (None, 0.0))
        if known is connection and loop.time() - at < _HEARTBEAT_SECONDS:
            return
        await connection.request(producer_heartbeat_command(self._client_id, self._group), _REQUEST_SECONDS)
        self._greeted[address] = connection, loop.time()

    async def _keep(self) -> None:
        lost, changed = self._mq.pool.on_lost, self._mq.routes.on_change
        wake = self._woken.set

        def connection_lost(_: str) -> None:
            wake()

        lost.add(connection_lost)
        changed.add(wake)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._woken.wait()
                        await asyncio.sleep(_LOOK_SECONDS / 10)
                self._woken.clear()
                await self._greet_all()
        finally:
            lost.discard(connection_lost)
            changed.discard(wake)

    async def _greet_all(self) -> None:
        try:
            addresses = (await self._mq.routes.cluster()).masters.values()
        except RayMQError as error:
            _log.debug("heartbeats of producer group %s: %s", self._group, error)
            return
        for outcome in await asyncio.gather(*map(self.greet, addresses), return_exceptions=True):
            if isinstance(outcome, RayMQError):
                _log.debug("heartbeat of producer group %s: %s", self._group, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    def _pushed(self, connection: WireConnection, command: Command) -> None:
        if command.code != RequestCode.CHECK_TRANSACTION_STATE or len(self._answers) >= _MAX_WAITING:
            return
        try:
            header = CheckTransactionState.read(command)
            record = decode(command.body)
        except RayMQError as error:
            _log.warning("a question of %s about a transaction cannot be read: %s", connection.address, error)
            return
        if record.properties.get(names.PGROUP) != self._group:
            return
        message = ReceivedMessage.from_record(record, header.broker)
        task = asyncio.get_running_loop().create_task(self._answer(connection, header, message))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(
        self, connection: WireConnection, header: CheckTransactionState, message: ReceivedMessage
    ) -> None:
        outcome = await self._outcome(message)
        half = header.tran_state_table_offset, header.commit_log_offset
        command = end_command(self._group, half, outcome, header.msg_id, from_check=True)
        try:
            await connection.request(command, _REQUEST_SECONDS)
        except RayMQError as error:  # the broker asks again
            _log.warning(
                "broker %s did not take the answer %s for transaction %s, and asks again: %s",
                *(header.broker, outcome.value, header.msg_id, error),
            )

    async def _outcome(self, message: ReceivedMessage) -> TransactionOutcome:
        """Return what the checker says; UNKNOWN if it fails."""
        answered: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._threads.submit((message, answered))
        outcome, failure = await answered
        if failure is not None:
            _log.warning(
                "the transaction checker of group %s failed on message %s of topic %s; the broker asks again",
                *(self._group, message.unique_key, message.topic),
                exc_info=failure,
            )
            return TransactionOutcome.UNKNOWN
        if isinstance(outcome, TransactionOutcome):
            return outcome
        _log.warning(
            "the transaction checker of group %s returned %r for message %s of topic %s, which counts as UNKNOWN; "
            "return TransactionOutcome.COMMIT, ROLLBACK or UNKNOWN",
            *(self._group, outcome, message.unique_key, message.topic),
        )
        return TransactionOutcome.UNKNOWN

    def _call(self, question: _Question) -> None:
        """Call the checker on this thread, and hand its result to the event loop."""
        message, answered = question
        outcome, failure = None, None
        try:
            outcome = self._checker(message)
            outcome = asyncio.run(_awaited(outcome)) if inspect.isawaitable(outcome) else outcome
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            failure = error
        with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
            answered.get_loop().call_soon_threadsafe(_settle, answered, (outcome, failure))


def _settle(answered: asyncio.Future[_Result], result: _Result) -> None:
    if not answered.done():  # else it was cancelled
        answered.set_result(result)


async def _awaited(outcome: Awaitable[TransactionOutcome]) -> TransactionOutcome:
    return await outcome
