"""Send messages: blocking, as futures, in asyncio, one-way, in batches and as tables."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack

from raymq.actors.errors import (
    ClientClosed,
    InvalidInput,
    NotStored,
    OutcomeUnknown,
    RayMQError,
    WrongType,
    queue_not_found,
)
from raymq.actors.naming import TIMER_TOPIC, check_group, check_sendable
from raymq.actors.protocol import MessageQueue, RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.actors.sending.body_size import ALWAYS_READABLE_BYTES
from raymq.actors.sending.direct_sender import sizes_of_one
from raymq.actors.sending.send_plan import SendParameters
from raymq.actors.sending.sender import RecordSender, SendOutcome
from raymq.client import arguments, producer_limits
from raymq.client.callback_executor import CallbackFuture
from raymq.client.client_base import ClientBase, check_connection
from raymq.client.client_metrics import CLIENT_METRICS
from raymq.client.connection import Connection
from raymq.client.fork_hooks import keep_for_parent, register_child_reset
from raymq.client.message import Message, key_numbers
from raymq.client.produce.body_limits import BodyLimits
from raymq.client.produce.message_batch import OpenBatches, PendingResult
from raymq.client.produce.message_encoder import (
    ArrowData,
    BatchPart,
    BatchParts,
    arrow_table,
    encode_messages,
    message_parts,
    packed_host,
    table_parts,
)
from raymq.client.produce.outbox_file import OutboxFile
from raymq.client.produce.send_options import NO_OPTIONS, SendDefaults, SendOptions, checked_timeout
from raymq.client.produce.send_pipeline import OUTBOX_SECONDS, PipelineOptions, SendPipeline
from raymq.client.produce.sent_results import (
    BatchResults,
    PartOutcome,
    batch_error,
    offset_runs,
    result_of_one,
    results_of,
    table_error,
)
from raymq.client.produce.traced_sends import TracedSends
from raymq.client.requests.message_recall import encode_handles, handles_of, recall
from raymq.client.results import SendResult, TableResult

if TYPE_CHECKING:
    from raymq.client.produce.transaction import Transaction, TransactionBlock
    from raymq.client.produce.transaction_responder import TransactionChecker, TransactionCheckResponder

_T = TypeVar("_T")
#: How many parts of one call are in flight at a time if no order has to be kept: one on the wire, one in the broker.
_PARTS_AHEAD: Final = 2
#: How many seconds the connection's loop may take to begin a call.
_LOOP_SECONDS: Final = 1.0
#: How often `close` checks whether the sends of other threads have ended.
_LOOK_SECONDS: Final = 0.005
#: Contains no batch, so that nothing is added.
_NO_BATCHES: Final = OpenBatches(PendingResult, 0, 0)
_topic = attrgetter("topic")
_is_delayed = attrgetter("is_delayed")


class Producer(ClientBase):
    """A producer that sends messages.

    Thread-safe, usable at once after construction, and a context manager. In a forked child it starts with no gathered
    messages, which its parent sends.

    If a call returns, its message is in a broker's log (see `SendStatus`). If it raises `NotStored`, the message is
    not. If it raises `OutcomeUnknown`, the message may be: sending the same message again may store it twice.

    Args:
        mq: the connection to the cluster.
        group: the name of the application. Shared producers exist once per group.
        timeout: the time budget of a whole send in seconds. During this time, an attempt that certainly stored nothing
            (no connection, not the master, no route, too few replicas in sync) is repeated after a short pause.
        retries: how many further attempts follow an attempt that may have stored the message, or that a broker refused
            for another reason; each is preferably made at another broker. With 0 no message is stored twice.
        linger: how many seconds `send_async` and `asend` gather messages in order to send them together; 0 does not
            gather.
        idempotent: number the batches, so that a batch whose response was lost can be sent again without a duplicate.
        isolation: how misbehaving brokers are avoided: "latency", "quarantine", "flag", "least-failures" or None.
        shared: send through the group's producer actor, which keeps routes and connections for many short tasks.
        async_retry: where `send_async` retries after an attempt that may have stored the message: on the "same" broker
            or on "another". After a refusal any broker may be used.
        retry_another_broker_when_not_store_ok: retry if the status is not SEND_OK. The message may then be stored
            twice.
        buffer_bytes: with `linger`, how many bytes may wait for responses.
        when_full: whether a send beyond `buffer_bytes` should "block" within its time budget or "raise" `BufferFull` at
            once.
        transaction_checker: decides open transactions of the group whose process ended, or could not tell the broker:
            called with the message, on a thread of its own, it returns a `TransactionOutcome`. It may be a coroutine
            function.
        outbox: a file that keeps messages whose attempts were all unsuccessful. They are sent later, in order, in the
            background, also by the next process that uses the file. The error of the send has `.kept` set then.

    Raises:
        InvalidInput: a name or number is not valid, or `shared` is used without Ray.
        ClientClosed: the connection is closed.
    """

    KIND = "producer"
    SENDS = True

    def __init__(
        self,
        mq: Connection,
        group: str,
        *,
        timeout: float = 10.0,
        retries: int = 2,
        linger: float = 0.0,
        idempotent: bool = False,
        isolation: Literal["latency", "quarantine", "flag", "least-failures"] | None = "latency",
        shared: bool = False,
        async_retry: Literal["same", "another"] = "same",
        retry_another_broker_when_not_store_ok: bool = False,
        buffer_bytes: int = 64 << 20,
        when_full: Literal["block", "raise"] = "block",
        outbox: str | Path | None = None,
        transaction_checker: TransactionChecker | None = None,
    ) -> None:
        check_connection(mq)
        self.group = check_group(group)
        self._defaults = SendDefaults(timeout, retries, async_retry, retry_another_broker_when_not_store_ok, idempotent)
        self._options = PipelineOptions(group, linger, isolation, shared, buffer_bytes, when_full, outbox)
        self._options.check(timeout)
        super().__init__(mq)
        mq.check_open()
        self._limits = BodyLimits(mq)
        self._plain_terms = self._defaults.terms("", NO_OPTIONS)
        #: Held by the thread that closes the producer, until no send is in flight. Reentrant: a signal handler may
        #: close it, too, on the thread that it has interrupted.
        self._closing = threading.RLock()
        self._ended = False
        #: The threads that are in a call that sends. A signal handler that runs on one of them may not send.
        self._sending_threads: set[int] = set()
        #: One future for each send that the connection's loop carries out. Used on the loop only.
        self._under_way: set[asyncio.Future[None]] = set()
        if outbox is not None:
            OutboxFile(outbox).close()  # raises an error now if the file cannot be used
        #: None in a forked child until its first send.
        self._made: SendPipeline | None = None
        #: The batches to which `send_async` adds at once; none without `linger`.
        self._open_batches = _NO_BATCHES
        #: Reentrant: a signal handler may interrupt the thread that holds it, and send.
        self._making = threading.RLock()
        self._make_paths()
        self._checker = transaction_checker
        #: None without a checker, and in a forked child until its first transaction.
        self._responder: TransactionCheckResponder | None = None
        if transaction_checker is not None:
            if not callable(transaction_checker):
                raise WrongType("transaction_checker", "a function of a message", transaction_checker)
            self._open(self._start_responder)
            mq.retain(self)
        if mq.tracer is not None:
            self.__class__ = TracedProducer  # so that other producers have no step for traces
        register_child_reset(self, Producer._reset_in_child)
        mq.adopt(self)
        CLIENT_METRICS.watch(self)

    def send(self, message: Message, **options: Unpack[SendOptions]) -> SendResult:
        """Send one message and wait for the result, with its queue and offset.

        Raises:
            NotStored, OutcomeUnknown: the send failed; `.attempts` lists every attempt. NotStored without an attempt:
                a signal handler called it that has interrupted a send on the same thread.
            InvalidInput, TopicNotFound, QueueNotFound, PermissionDenied, ClientClosed: nothing was stored.
        """
        if self._closed:
            self._check_open()
        if type(message) is not Message:
            arguments.instance("message", message, Message)
        delayed = message.is_delayed
        terms = self._terms(message, options) if options or delayed else self._plain_terms
        thread = threading.get_ident()
        if thread in self._sending_threads:
            self._check_may_send()
        try:  # as `_marks_send`, which would take a microsecond
            self._sending_threads.add(thread)
            direct, mq = (self._made or self._make_paths()).direct, self._mq
            if direct is None or mq.is_on_loop:
                return mq.run(self._send_one(self._paths.sends, message, terms))
            record = message.encode(time.time_ns() // 1_000_000, packed_host(mq.pool.local_host))
            if delayed:
                return _result(message, direct.send(message.topic, record, sizes_of_one(record), terms))
            return result_of_one(direct.send_one(message.topic, record, terms), message.unique_key)
        except ClientClosed as error:
            raise _broken_off() from error
        finally:
            self._sending_threads.discard(thread)

    async def asend(self, message: Message, **options: Unpack[SendOptions]) -> SendResult:
        """Do `send` for asyncio code, on any event loop.

        With `linger`, the message is gathered as in `send_async`.
        """
        arguments.instance("message", message, Message)
        if self._options.linger and not message.is_delayed:
            sent = self.send_async(message, **options)
            return await (asyncio.wrap_future(sent) if not isinstance(sent, PendingResult) else sent.outcome())
        self._check_may_send()
        terms = self._terms(message, options)
        try:
            return await self._mq.arun(self._send_one(self._paths.sends, message, terms))
        except ClientClosed as error:
            raise _broken_off() from error

    def send_async(self, message: Message, **options: Unpack[SendOptions]) -> Future[SendResult]:
        """Send one message and return a future of what `send` returns or raises.

        The future cannot be cancelled. Its callbacks run one after the other on a thread of the connection, and may
        themselves send and wait.
        """
        if not options and (gathered := self._open_batches.add(message)) is not None:
            return gathered
        arguments.instance("message", message, Message)
        thread = self._check_may_send()
        try:  # as `_marks_send`
            self._sending_threads.add(thread)
            paths = self._paths
            batcher = None if message.is_delayed else paths.batcher
            if batcher is not None and not options:
                return batcher.add(message)
            terms = self._terms(message, options, in_background=True)
            if batcher is not None:
                return batcher.add(message, terms.without_sharding_key(), terms.sharding_key)
            return self._in_background(self._send_one(paths.sends, message, terms))
        finally:
            self._sending_threads.discard(thread)

    def send_oneway(self, message: Message, **options: Unpack[SendOptions]) -> None:
        """Send one message in one attempt, without waiting for a response.

        It is not reported whether the message was stored.

        Raises:
            QueueNotFound: `queue=` is not a queue of the topic according to the name servers. Nothing was sent.
            InvalidInput: the body is above 4 MiB and longer than the brokers' `max_message_bytes`. Nothing was sent.
        """
        arguments.instance("message", message, Message)
        with self._marks_send():
            terms = replace(self._terms(message, {**options, "retries": 0}), waits=False)
            if terms.queue is not None and not self._mq.is_on_loop:
                self._mq.run(self._check_queue(terms.queue, terms.timeout))
            if len(message.body) > ALWAYS_READABLE_BYTES and not self._mq.is_on_loop:
                self._mq.run(self._limits.check_one(message, terms))
            self._in_background(self._forget(self._paths.sends, message, terms))

    def send_batch(self, messages: Sequence[Message], **options: Unpack[SendOptions]) -> Sequence[SendResult]:
        """Send messages of one topic in parts of at most 4 MiB.

        Each part is stored in one queue, whole or not at all. The results are in the order of the messages and are
        created at the first access. If a part fails, the following parts are not sent, and the error's `.results` has
        the outcome of each message.

        Raises:
            OutcomeUnknown, PartlyStored, NotStored: OutcomeUnknown if messages may be stored, else PartlyStored if some
                messages are stored, else NotStored.
            InvalidInput: there is no message, there are several topics or a delayed message, or a body is longer than
                the brokers' `max_message_bytes`. Nothing was sent.
            As `send` besides.
        """
        self._check_may_send()
        terms, messages = self._batch_terms(messages, options), list(messages)
        numbers = key_numbers(messages)
        parts = message_parts(messages, numbers, self._born_host())
        outcomes: list[tuple[int, PartOutcome]] = []
        try:
            with self._marks_send():
                self._send_parts(messages[0].topic, parts, terms, outcomes)
        except RayMQError as error:
            raise _failed_batch(error, outcomes, numbers) from error
        return BatchResults([sent for _, sent in outcomes if isinstance(sent, SendOutcome)], numbers)

    async def asend_batch(self, messages: Sequence[Message], **options: Unpack[SendOptions]) -> Sequence[SendResult]:
        """Do `send_batch` for asyncio code, on any event loop."""
        self._check_may_send()
        terms, messages = self._batch_terms(messages, options), list(messages)
        try:
            return await self._mq.arun(self._send_batch(self._paths.sends, messages, terms))
        except ClientClosed as error:
            raise _broken_off() from error

    def send_table(
        self,
        topic: str,
        table: ArrowData,
        body: str,
        keys: str | None = None,
        tags: str | None = None,
        properties: str | None = None,
        **options: Unpack[SendOptions],
    ) -> TableResult:
        """Send every row of a table as a message, without Python code per row.

        Args:
            table: a table of pyarrow, pandas, polars, DuckDB or any other library with the Arrow PyCapsule interface.
            body: the column of the bodies (binary, string, or struct, which is encoded as msgpack).
            keys, tags, properties: the columns of the keys, the tag and the user's properties (map<string, string>).

        Raises:
            InvalidInput: a column is missing or a row exceeds a limit. Nothing was sent.
            OutcomeUnknown, PartlyStored, NotStored: as `send_batch`; `.results` has an entry per part, with `.rows`.
            As `send` besides.
        """
        return self._send_table(topic, table, (body, keys, tags, properties), options)

    def _send_table(
        self,
        topic: str,
        table: ArrowData,
        columns: tuple[str, str | None, str | None, str | None],
        options: Any,
        common: Mapping[str, str] = MappingProxyType({}),
    ) -> TableResult:
        """Do `send_table`; `common` are properties that each message gets if there is room for them."""
        self._check_may_send()
        terms = self._defaults.terms(check_sendable(topic), options)
        host = self._mq.pool.local_host
        rows = arrow_table(table)
        body, keys, tags, properties = columns
        encoded = table_parts(
            rows, topic, body=body, keys=keys, tags=tags, properties=properties, host=host, common=common
        )
        outcomes: list[tuple[int, PartOutcome]] = []
        first_keys: list[str] = []
        try:
            with self._marks_send():
                self._send_parts(topic, encoded.noting_first_keys(first_keys), terms, outcomes)
        except RayMQError as error:
            if not outcomes:
                raise
            raise table_error(outcomes, first_keys, rows.num_rows) from error
        sents = [sent for _, sent in outcomes if isinstance(sent, SendOutcome)]
        return TableResult(rows.num_rows, [run for sent in sents for run in offset_runs(sent)])

    async def asend_table(
        self,
        topic: str,
        table: ArrowData,
        body: str,
        keys: str | None = None,
        tags: str | None = None,
        properties: str | None = None,
        **options: Unpack[SendOptions],
    ) -> TableResult:
        """Do `send_table` for asyncio code; another thread encodes the rows."""
        return await asyncio.to_thread(self.send_table, topic, table, body, keys, tags, properties, **options)

    def begin(self, message: Message, *, check_after: int | None = None, **options: Unpack[SendOptions]) -> Transaction:
        """Send a message that consumers get only when its transaction is committed.

        Without `idempotent` the half message is sent again only if no broker can have stored it.

        Args:
            check_after: after how many whole seconds the broker asks the producers of the group how the transaction
                ended; None: the cluster's `transaction_check_after`. `commit` and `rollback` must come before that.

        Raises:
            NotStored, OutcomeUnknown: as `send`. With OutcomeUnknown a half message may be stored that nobody commits.
            InvalidInput: the message is delayed.
        """
        return self._run(self._begin_transaction(message, check_after, options))

    async def abegin(
        self, message: Message, *, check_after: int | None = None, **options: Unpack[SendOptions]
    ) -> Transaction:
        """Do `begin` for asyncio code, on any event loop."""
        return await self._arun(self._begin_transaction(message, check_after, options))

    def transaction(
        self, message: Message, *, check_after: int | None = None, **options: Unpack[SendOptions]
    ) -> TransactionBlock:
        """Return a context manager for `with` or `async with` that begins and ends a transaction.

        At the end of the block it commits. If an exception leaves the block, it rolls back, and the exception is
        raised. `check_after` is as in `begin`.
        """
        from raymq.client.produce.transaction import TransactionBlock  # few programs need it

        return TransactionBlock(
            partial(self.begin, message, check_after=check_after, **options),
            partial(self.abegin, message, check_after=check_after, **options),
        )

    async def _begin_transaction(self, message: Message, check_after: int | None, options: Any) -> Transaction:
        from raymq.client.produce.transaction import Transaction, half_of

        arguments.instance("message", message, Message)
        half = half_of(message, self.group, check_after)
        if not self._defaults.idempotent:
            options = {**options, "retries": 0}
        terms = replace(self._defaults.terms(message.topic, options), delayed=True)
        if self._checker is not None:
            if self._responder is None:
                await self._start_responder()
            responder = self._responder
            assert responder is not None
            for address in (await self._mq.routes.get(message.topic, timeout=terms.timeout)).addresses.values():
                with contextlib.suppress(RayMQError):  # the send finds out which broker is there
                    await responder.greet(address)
        records, sizes = encode_messages([half], [half.unique_key], self._born_host())
        sent = await self._paths.without_outbox.send(message.topic, records, sizes, terms)
        result = results_of(sent, [message.unique_key])[0]._replace(transaction_id=message.unique_key)
        return Transaction(self._mq, self.group, message, result, sent, terms.timeout)

    async def _start_responder(self) -> None:
        from raymq.client.produce.transaction_responder import TransactionCheckResponder

        assert self._checker is not None
        self._responder = TransactionCheckResponder(self._mq, self.group, self._checker)
        await self._responder.start()

    def recall(self, sent: SendResult | str, *, timeout: float | None = None) -> RecallStatus:
        """Withdraw a message that waits for its `deliver_at`.

        Args:
            sent: the result of the send, or its `recall_handle`.

        Returns:
            WITHDRAWN if the message will never be delivered, also if it was withdrawn before. DELIVERED if it was
            delivered already. UNKNOWN if the broker does not know the message, or no longer does.

        Raises:
            NotRecallable: the message had no `deliver_at`, or its `deliver_at` had passed.
            InvalidInput: the handle is not valid.
            BrokerUnavailable: the broker did not answer; the call may be repeated.
            ClientClosed: the producer or its connection was closed.
        """
        return self._mq.run(self.arecall(sent, timeout=timeout))

    async def arecall(self, sent: SendResult | str, *, timeout: float | None = None) -> RecallStatus:
        """Do `recall` for asyncio code, on any event loop."""
        self._check_open()
        timeout = self._defaults.timeout if timeout is None else checked_timeout(timeout)
        return await self._mq.arun(recall(self._mq, handles_of(sent), timeout))

    def flush(self, timeout: float = 10.0) -> bool:
        """Send the gathered messages and wait for the responses to all background sends.

        Return False if `timeout` seconds were not enough.
        """
        deadline = time.monotonic() + arguments.duration("timeout", timeout)
        batcher = None if self._made is None else self._made.batcher
        answered = batcher is None or batcher.flush(timeout)
        return self._drain(deadline - time.monotonic()) and answered

    async def aflush(self, timeout: float = 10.0) -> bool:
        """Do `flush` for asyncio code."""
        return await asyncio.to_thread(self.flush, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Reject new messages, send the gathered ones and wait for all responses.

        The wait takes at most `timeout` seconds. Messages without a response by then go into the outbox, if there is
        one, within a few seconds more. If another thread is closing the producer already, this call waits for it. In a
        signal handler it does not wait for the send or the close that the handler has interrupted.
        """
        arguments.duration("timeout", timeout)
        self._closed = True
        if self._closing.acquire(timeout=timeout + 2 * OUTBOX_SECONDS):
            try:
                if not self._ended:
                    self._ended = True  # first: a signal handler that closes does not wait for this call
                    self._end(timeout)
            except BaseException:
                self._ended = False
                raise
            finally:
                self._closing.release()

    def begin_close(self, timeout: float) -> Callable[[], None]:
        """Start to close and return a function that waits for the end of it.

        Gathered messages are sent at once.
        """
        self._closed = True
        if self._made is not None and self._made.batcher is not None:
            self._made.batcher.begin_close()
        if self._made is not None and not self._under_way:
            self._made.start_outbox_close(self._mq)
        return super().begin_close(timeout)

    def gauges(self) -> tuple[int, int]:
        """Return the number of isolated brokers, and of gathered messages without a response."""
        return (0, 0) if self._made is None else self._made.gauges()

    def _end(self, timeout: float) -> None:
        CLIENT_METRICS.unwatch(self)
        responder, self._responder = self._responder, None
        if responder is not None:
            self._mq.release(self)
            with contextlib.suppress(RayMQError, TimeoutError):
                self._mq.run(responder.stop(), timeout)
        paths = self._made  # None in a forked child that has sent nothing, and none is made now
        deadline = time.monotonic() + timeout
        if paths is not None and paths.batcher is not None:
            paths.batcher.close(timeout)
        self._drain(deadline - time.monotonic())
        me = {threading.get_ident()}
        while time.monotonic() < deadline and self._sending_threads - me:
            time.sleep(_LOOK_SECONDS)
        if paths is not None:
            paths.close_outbox(self._mq, max(0.0, deadline - time.monotonic()))

    def _drain(self, timeout: float) -> bool:
        """Wait for the sends on the connection's loop; return False after `timeout` seconds."""
        if self._mq.loop_thread is None:
            return True  # it was given none
        if self._mq.is_on_loop:
            return not self._under_way  # nothing can end while its thread waits
        timeout = max(0.0, timeout)
        try:
            return self._mq.run(self._all_ended(timeout), timeout + _LOOP_SECONDS)
        except ClientClosed:
            return True
        except TimeoutError:
            return False

    async def _all_ended(self, timeout: float) -> bool:
        pending = list(self._under_way)
        return not pending or not (await asyncio.wait(pending, timeout=timeout))[1]

    @contextlib.contextmanager
    def _is_under_way(self) -> Iterator[None]:
        """Note on the loop that a send is under way during the block."""
        ended = asyncio.get_running_loop().create_future()
        self._under_way.add(ended)
        try:
            yield
        finally:
            self._under_way.discard(ended)
            ended.set_result(None)

    @property
    def _paths(self) -> SendPipeline:
        """Return the send pipeline, which the first send after a fork creates again.

        It must be called on the caller's thread, never in a coroutine on the connection's loop, since creating the
        pipeline needs that loop.
        """
        return self._made or self._make_paths()

    def _make_paths(self) -> SendPipeline:
        with self._making:  # a second thread would create a pipeline that is never closed
            if self._made is None:
                self._made = SendPipeline.make(self._mq, self._options, self._defaults, owner=self)
                if self._made.batcher is not None:
                    self._open_batches = self._made.batcher.open
            return self._made

    def _reset_in_child(self) -> None:
        """Reset this producer in a forked child. The parent sends the gathered messages."""
        keep_for_parent(self._made)  # the pipeline may hold an open outbox file
        self._made = None
        self._open_batches = _NO_BATCHES
        self._making = threading.RLock()
        self._sending_threads = set()
        self._under_way = set()
        self._closing = threading.RLock()
        self._responder = None
        self._mq.adopt(self)
        CLIENT_METRICS.watch(self)

    def _check_may_send(self) -> int:
        """Return the calling thread's id; raise an error if it may not send."""
        self._check_open()
        thread = threading.get_ident()
        if thread in self._sending_threads:
            raise NotStored(
                "a signal handler that has interrupted a send cannot send on the same thread: "
                "set a threading.Event in the handler, and send when the program sees it"
            )
        return thread

    @contextlib.contextmanager
    def _marks_send(self) -> Iterator[None]:
        """Mark the calling thread as sending during the block, or refuse it."""
        thread = self._check_may_send()
        try:
            self._sending_threads.add(thread)
            yield
        finally:
            self._sending_threads.discard(thread)

    def _terms(self, message: Message, options: Any, *, in_background: bool = False) -> SendParameters:
        return self._defaults.terms(message.topic, options, delayed=message.is_delayed, in_background=in_background)

    def _batch_terms(self, messages: Sequence[Message], options: Any) -> SendParameters:
        try:
            topics, delayed = set(map(_topic, messages)), any(map(_is_delayed, messages))
        except (AttributeError, TypeError):
            raise WrongType("messages", "a list of Message objects", messages) from None
        if len(topics) != 1:
            raise InvalidInput("messages", producer_limits.ONE_TOPIC, sorted(topics))
        if delayed:
            raise InvalidInput("messages", producer_limits.AT_ONCE, "delay_level or deliver_at")
        return self._defaults.terms(messages[0].topic, options)

    def _born_host(self) -> bytes:
        return packed_host(self._mq.pool.local_host)

    def _send_parts(
        self, topic: str, parts: BatchParts, terms: SendParameters, outcomes: list[tuple[int, PartOutcome]]
    ) -> None:
        """Send parts, and encode the next part while the last ones are in flight.

        With a fixed queue, the parts are sent in order.

        Args:
            outcomes: a list to which the message count and the outcome of each attempted part are appended, in order,
                also if this raises. After a part that failed no further part is begun.
        """
        terms = self._limits.check(topic, parts, terms)
        ahead = 1 if terms.queue is not None or terms.sharding_key is not None else _PARTS_AHEAD
        under_way: deque[tuple[BatchPart, Callable[[], SendOutcome]]] = deque()

        def settle() -> None:
            part, outcome = under_way.popleft()
            try:
                outcomes.append((len(part.sizes), outcome()))
            except ClientClosed as error:
                outcomes.append((len(part.sizes), _broken_off()))
                raise _broken_off() from error
            except RayMQError as error:
                outcomes.append((len(part.sizes), error))
                raise

        try:
            for part in parts:
                if len(under_way) == ahead:
                    settle()
                under_way.append((part, self._begin(topic, part, terms)))
            while under_way:
                settle()
        finally:
            while under_way:  # after an error, collect the outcomes of the other parts, too
                with contextlib.suppress(RayMQError):
                    settle()

    def _begin(self, topic: str, part: BatchPart, terms: SendParameters) -> Callable[[], SendOutcome]:
        """Start to send a part, and return a function that waits for its outcome."""
        sends, direct = self._paths.sends, self._paths.direct
        if direct is None or terms.require_send_ok or terms.idempotent:
            return self._mq.submit(sends.send(topic, part.records, part.sizes, terms)).result
        return partial(direct.finish, direct.begin(topic, part.records, part.sizes, terms))

    async def _send_batch(
        self, sends: RecordSender, messages: list[Message], terms: SendParameters
    ) -> Sequence[SendResult]:
        numbers = key_numbers(messages)
        topic, parts = messages[0].topic, message_parts(messages, numbers, self._born_host())
        outcomes: list[tuple[int, PartOutcome]] = []
        with self._is_under_way():
            terms = await self._limits.acheck(topic, parts, terms)
            for part in parts:
                try:
                    sent = await sends.send(topic, part.records, part.sizes, terms)
                except RayMQError as error:
                    outcomes.append((len(part.sizes), error))
                    raise _failed_batch(error, outcomes, numbers) from error
                outcomes.append((len(part.sizes), sent))
        return BatchResults([sent for _, sent in outcomes if isinstance(sent, SendOutcome)], numbers)

    def _in_background(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        future: CallbackFuture[_T] = CallbackFuture(self._mq.callbacks)
        self._mq.start(coroutine, partial(_settle, future))
        return future

    async def _send_one(self, sends: RecordSender, message: Message, terms: SendParameters) -> SendResult:
        with self._is_under_way():
            records, sizes = encode_messages([message], [message.unique_key], self._born_host())
            return _result(message, await sends.send(message.topic, records, sizes, terms))

    async def _check_queue(self, queue: MessageQueue, timeout: float) -> None:
        """Raise QueueNotFound if the routes, refreshed if necessary, do not have the queue.

        Other errors are left to the send itself.
        """
        routes = self._mq.routes
        try:
            route = await routes.get(queue.topic, timeout=timeout)
            if queue not in route.writable():
                route = await routes.get(queue.topic, fresh=True, timeout=timeout)
        except RayMQError:
            return
        if queue not in route.writable() and not route.forbids_write(queue) and queue.broker in route.addresses:
            raise queue_not_found(queue)

    async def _forget(self, sends: RecordSender, message: Message, terms: SendParameters) -> None:
        try:
            await self._send_one(sends, message, terms)
        except RayMQError:
            return


class TracedProducer(TracedSends, Producer):
    """A producer of a connection that traces."""


def _settle(future: Future[_T], task: asyncio.Task[_T]) -> None:
    if task.cancelled():
        future.set_exception(OutcomeUnknown("closed before an answer came"))
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


def _broken_off() -> OutcomeUnknown:
    """Return the error of a send that had begun when the connection was closed.

    The outcome of its attempts is not known.
    """
    return OutcomeUnknown("closed before an answer came")


def _failed_batch(
    error: RayMQError, outcomes: Sequence[tuple[int, PartOutcome]], numbers: Sequence[str | int]
) -> RayMQError:
    """Return the error of a batch whose parts had these outcomes.

    If no part was attempted, return `error`.
    """
    return batch_error(outcomes, numbers) if outcomes else error


def _result(message: Message, sent: SendOutcome) -> SendResult:
    """Return the result of the one message in `sent`."""
    result = results_of(sent, [message.unique_key])[0]
    return result._replace(recall_handle=_recall_handle(message, sent)) if message.is_delayed else result


def _recall_handle(message: Message, sent: SendOutcome) -> str | None:
    """Return the recall handle, or None unless the message waits for a `deliver_at`."""
    due_ms = message.due_ms
    if due_ms is None or sent.placed.topic != TIMER_TOPIC:
        return None
    brokers = (sent.queue.broker, *sent.doubtful)
    return encode_handles([RecallHandle(message.topic, broker, due_ms, message.unique_key) for broker in brokers])
