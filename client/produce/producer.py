"""Sending messages: synchronously, as futures, in asyncio, one-way, in batches and as Arrow tables."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Unpack

from raymq.actors.errors import (
    ClientClosed,
    InvalidInput,
    OutcomeUnknown,
    RayMQError,
    WrongType,
    queue_not_found,
)
from raymq.actors.naming import TIMER_TOPIC, check_group, check_sendable
from raymq.actors.protocol import MessageQueue, RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.actors.sending.direct import size_of
from raymq.actors.sending.longest_body import READ_BY_ALL_BYTES
from raymq.actors.sending.sender import Sends, Sent, Terms
from raymq.client import arguments, limits
from raymq.client.callbacks import CallbackFuture
from raymq.client.client_base import ClientBase, check_connection
from raymq.client.connection import Connection
from raymq.client.forking import leave_to_parent, renew_in_child
from raymq.client.message import Message, key_numbers
from raymq.client.produce.body_limits import BodyLimits
from raymq.client.produce.encoding import (
    ArrowData,
    BatchPart,
    BatchParts,
    arrow_table,
    encode_messages,
    message_parts,
    packed_host,
    table_parts,
)
from raymq.client.produce.frames import is_within_elsewhere, is_within_here
from raymq.client.produce.message_batch import PendingResult
from raymq.client.produce.options import NO_OPTIONS, SendDefaults, SendOptions, checked_timeout
from raymq.client.produce.outbox_file import OutboxFile
from raymq.client.produce.paths import OUTBOX_SECONDS, PathOptions, SendPaths
from raymq.client.produce.recalling import encode_handles, handles_of, recall
from raymq.client.produce.sent_results import (
    BatchResults,
    PartOutcome,
    batch_error,
    result_of_one,
    results_of,
    runs_of,
    table_error,
)
from raymq.client.results import SendResult, TableResult

_T = TypeVar("_T")
#: Parts of one call that are under way together, where no order has to be kept: one on the wire, one in the broker.
_PARTS_AHEAD: Final = 2
#: How often who closes it looks whether other threads' sends have ended.
_LOOK_SECONDS: Final = 0.005
_topic = attrgetter("topic")
_is_delayed = attrgetter("is_delayed")


class Producer(ClientBase):
    """Sends messages. Thread-safe; usable at once; a context manager. A forked child's sends go their own way.

    A call that returns has its message in a broker's log (see `SendStatus`). One that raises `NotStored` has not. One
    that raises `OutcomeUnknown` may have: sending the same message again may store it twice.

    Args:
        mq: the connection to the cluster.
        group: names the application; shared producers are one per group.
        timeout: the budget of a whole send, seconds. It is used: while it lasts, a try that surely stored nothing (no
            connection, not the master, no route, too few replicas in sync) is repeated after a short pause.
        retries: further tries after one that may have stored the message, or that a broker refused for another reason;
            each preferably on another broker. With 0 no message is stored twice.
        linger: how long `send_async` and `asend` gather messages so that they travel together, seconds; 0 = not at all.
        idempotent: number the batches, so that one whose answer was lost can be sent again without a duplicate.
        isolation: how brokers that misbehave are left out: "latency", "quarantine", "flag", "least-failures" or None.
        shared: send through the group's producer actor, which keeps routes and connections for many short tasks.
        async_retry: where `send_async` tries again after a try that may have stored the message: on the "same" broker
            or on "another". After a refusal any broker may take it.
        retry_another_broker_when_not_store_ok: try again where the status is not SEND_OK; the message may be stored
            twice then.
        buffer_bytes: with `linger`, how much may wait for answers, and
        when_full: whether a send beyond that should "block" within its budget or "raise" `BufferFull` at once.
        outbox: a file that keeps messages whose tries ran out; they are sent later, in order, in the background, also
            by the next process that names the file. The error of the send says so in `.kept`.

    Raises:
        InvalidInput: a name or number breaks its rule, or `shared` without Ray.
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
    ) -> None:
        check_connection(mq)
        self.group = check_group(group)
        self._defaults = SendDefaults(timeout, retries, async_retry, retry_another_broker_when_not_store_ok)
        self._options = PathOptions(group, linger, idempotent, isolation, shared, buffer_bytes, when_full, outbox)
        self._options.check(timeout)
        super().__init__(mq)
        mq.check_open()
        self._limits = BodyLimits(mq)
        self._plain_terms = self._defaults.terms("", NO_OPTIONS)
        #: Held by who closes it, until nothing is on its way any more.
        self._closing = threading.Lock()
        #: Who holds it: a signal handler runs on the thread that it has interrupted.
        self._closer: int | None = None
        self._ended = False
        #: Sends that no thread waits for.
        self._under_way: set[Future[Any]] = set()
        if outbox is not None:
            OutboxFile(outbox).close()  # says now whether it can be used
        #: None in a forked child that has sent nothing.
        self._made: SendPaths | None = None
        #: A signal handler may send, too, on the thread that it has interrupted here.
        self._making = threading.RLock()
        self._make_paths()
        renew_in_child(self, Producer._begin_anew)
        mq.adopt(self)

    def send(self, message: Message, **options: Unpack[SendOptions]) -> SendResult:
        """Send one message and wait for its place.

        Raises:
            NotStored, OutcomeUnknown: `.attempts` lists every try.
            InvalidInput, TopicNotFound, QueueNotFound, PermissionDenied, ClientClosed: nothing was stored.
        """
        if self._closed:
            self._check_open()
        if type(message) is not Message:
            arguments.instance("message", message, Message)
        delayed = message.is_delayed
        terms = self._terms(message, options) if options or delayed else self._plain_terms
        direct, mq = (self._made or self._make_paths()).one_by_one, self._mq
        try:
            if direct is None or mq.is_on_loop:
                return mq.run(self._send_one(self._paths.sends, message, terms))
            record = message.encode(time.time_ns() // 1_000_000, packed_host(mq.pool.local_host))
            if delayed:
                return _result(message, direct.send(message.topic, record, size_of(record), terms))
            return result_of_one(direct.send_one(message.topic, record, terms), message.unique_key)
        except ClientClosed as error:
            raise _broken_off() from error

    async def asend(self, message: Message, **options: Unpack[SendOptions]) -> SendResult:
        """`send` for asyncio code, on any event loop; with `linger` it gathers as `send_async` does."""
        arguments.instance("message", message, Message)
        if self._options.linger and not message.is_delayed:
            sent = self.send_async(message, **options)
            return await (asyncio.wrap_future(sent) if not isinstance(sent, PendingResult) else sent.outcome())
        terms = self._terms(message, options)
        try:
            return await self._mq.arun(self._send_one(self._paths.sends, message, terms), self._under_way)
        except ClientClosed as error:
            raise _broken_off() from error

    def send_async(self, message: Message, **options: Unpack[SendOptions]) -> Future[SendResult]:
        """Send one message; the future resolves with what `send` returns or raises. It cannot be cancelled.

        Its callbacks run one after the other on a thread of the connection, and may send and wait themselves.
        """
        if type(message) is not Message:
            arguments.instance("message", message, Message)
        paths = self._made or self._make_paths()
        batcher = paths.batcher
        if batcher is None or message.is_delayed:
            terms = self._terms(message, options, in_background=True)
            return self._in_background(self._send_one(paths.sends, message, terms))
        if not options:
            if self._closed:
                self._check_open()
            return batcher.add(message)
        terms = self._terms(message, options, in_background=True)
        return batcher.add(message, terms.without_sharding_key(), terms.sharding_key)

    def send_oneway(self, message: Message, **options: Unpack[SendOptions]) -> None:
        """Send one message without waiting for an answer: one try, and nobody says whether it arrived.

        Raises:
            QueueNotFound: `queue=` is none of its topic's, as far as name servers know; nothing was sent.
            InvalidInput: a body above 4 MiB that is longer than the brokers' `max_message_bytes`, likewise.
        """
        arguments.instance("message", message, Message)
        terms = replace(self._terms(message, {**options, "retries": 0}), waits=False)
        if terms.queue is not None and not self._mq.is_on_loop:
            self._mq.run(self._check_queue(terms.queue, terms.timeout))
        if len(message.body) > READ_BY_ALL_BYTES and not self._mq.is_on_loop:
            self._mq.run(self._limits.check_one(message, terms))
        self._in_background(self._forget(self._paths.sends, message, terms))

    def send_batch(self, messages: Sequence[Message], **options: Unpack[SendOptions]) -> Sequence[SendResult]:
        """Send messages of one topic, in parts of at most 4 MiB; each part goes to one queue, whole or not at all.

        The results are in the messages' order, and made when the first one is looked at. If a part fails, those behind
        it are not sent, and the error's `.results` says what became of each message.

        Raises:
            OutcomeUnknown, PartlyStored, NotStored: something may be stored; else something is; else nothing is.
            InvalidInput: no message, several topics, a delayed one among them, or a body longer than the brokers'
                `max_message_bytes`; nothing was sent.
            As `send` besides.
        """
        terms = self._batch_terms(messages, options)
        numbers = key_numbers(messages)
        parts = message_parts(messages, numbers, self._born_host())
        outcomes: list[tuple[int, PartOutcome]] = []
        try:
            self._send_parts(messages[0].topic, parts, terms, outcomes)
        except RayMQError as error:
            raise _failed_batch(error, outcomes, numbers) from error
        return BatchResults([sent for _, sent in outcomes if isinstance(sent, Sent)], numbers)

    async def asend_batch(self, messages: Sequence[Message], **options: Unpack[SendOptions]) -> Sequence[SendResult]:
        """`send_batch` for asyncio code, on any event loop."""
        terms = self._batch_terms(messages, options)
        try:
            return await self._mq.arun(self._send_batch(self._paths.sends, messages, terms), self._under_way)
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
        """Send every row of a table as a message, without a Python step per row.

        Args:
            table: of pyarrow, pandas, polars, DuckDB or whatever else has the Arrow PyCapsule interface.
            body: column of the bodies (binary, string, or struct: msgpack).
            keys, tags, properties: columns of the keys, the tag and the user's properties (map<string, string>).

        Raises:
            InvalidInput: a column is missing or a row breaks a limit; nothing was sent.
            OutcomeUnknown, PartlyStored, NotStored: as `send_batch`; `.results` has an entry per part, with `.rows`.
            As `send` besides.
        """
        self._check_open()
        terms = self._defaults.terms(check_sendable(topic), options)
        host = self._mq.pool.local_host
        rows = arrow_table(table)
        encoded = table_parts(rows, topic, body=body, keys=keys, tags=tags, properties=properties, host=host)
        outcomes: list[tuple[int, PartOutcome]] = []
        first_keys: list[str] = []
        try:
            self._send_parts(topic, encoded.noting_first_keys(first_keys), terms, outcomes)
        except RayMQError as error:
            if not outcomes:
                raise
            raise table_error(outcomes, first_keys, rows.num_rows) from error
        sents = [sent for _, sent in outcomes if isinstance(sent, Sent)]
        return TableResult(rows.num_rows, [run for sent in sents for run in runs_of(sent)])

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
        """`send_table` for asyncio code; the rows are encoded on another thread."""
        return await asyncio.to_thread(self.send_table, topic, table, body, keys, tags, properties, **options)

    def recall(self, sent: SendResult | str, *, timeout: float | None = None) -> RecallStatus:
        """Withdraw a message that waits for its `deliver_at`, by its result or its `recall_handle`.

        Returns:
            WITHDRAWN: it will never be delivered; asked again: the same. DELIVERED: it was, already. UNKNOWN: the
            broker does not know it, or not any more.

        Raises:
            NotRecallable: the message had no `deliver_at`, or one that had passed.
            InvalidInput: no handle. BrokerUnavailable: no answer; ask again. ClientClosed.
        """
        return self._mq.run(self.arecall(sent, timeout=timeout))

    async def arecall(self, sent: SendResult | str, *, timeout: float | None = None) -> RecallStatus:
        """`recall` for asyncio code, on any event loop."""
        self._check_open()
        timeout = self._defaults.timeout if timeout is None else checked_timeout(timeout)
        return await self._mq.arun(recall(self._mq, handles_of(sent), timeout))

    def flush(self, timeout: float = 10.0) -> bool:
        """Send what `linger` gathered, and wait for the answers to all that is on its way in the background.

        False if `timeout` seconds were not enough.
        """
        deadline = time.monotonic() + arguments.duration("timeout", timeout)
        batcher = self._paths.batcher
        answered = batcher is None or batcher.flush(timeout)
        left = wait(list(self._under_way), max(0.0, deadline - time.monotonic())).not_done
        return answered and not left

    async def aflush(self, timeout: float = 10.0) -> bool:
        """`flush` for asyncio code."""
        return await asyncio.to_thread(self.flush, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Take no more messages, send what was gathered, and wait for everybody's answers, at most `timeout` seconds.

        What has no answer by then goes into the outbox, where there is one, within a few seconds more. Who closes it
        while somebody else does waits for that; a signal handler that has interrupted that very call does not. One that
        has interrupted the beginning of a send in the background returns at once; a thread does the rest behind it.
        """
        arguments.duration("timeout", timeout)
        self._closed = True
        if self._closer == threading.get_ident():
            return
        if self.is_interrupted:
            threading.Thread(target=self.close, args=(timeout,), name="raymq-close").start()
            return
        if self._closing.acquire(timeout=timeout + 2 * OUTBOX_SECONDS):
            self._closer = threading.get_ident()
            try:
                if not self._ended:
                    self._end(timeout)
                    self._ended = True
            finally:
                self._closer = None
                self._closing.release()

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal handler asks, on a thread that begins a send: what it waits for goes on only behind it."""
        batcher = self._made.batcher if self._made is not None else None
        return is_within_here(_BEGINNING, self) or (batcher is not None and batcher.is_interrupted)

    def begin_close(self, timeout: float) -> Callable[[], None]:
        """As any client's: what was gathered is on its way at once."""
        self._closed = True
        if self._made is not None and self._made.batcher is not None:
            self._made.batcher.begin_close()
        if self._made is not None and not self._under_way:
            self._made.begin_close_outbox(self._mq)
        return super().begin_close(timeout)

    def _end(self, timeout: float) -> None:
        paths = self._made  # a forked child that has sent nothing has made nothing, and begins with nothing now
        deadline = time.monotonic() + timeout
        if paths is not None and paths.batcher is not None:
            paths.batcher.close(timeout)
        wait(list(self._under_way), max(0.0, deadline - time.monotonic()))
        while time.monotonic() < deadline and is_within_elsewhere(_BLOCKING, self):
            time.sleep(_LOOK_SECONDS)
        if paths is not None:
            paths.close_outbox(self._mq, max(0.0, deadline - time.monotonic()))

    @property
    def _paths(self) -> SendPaths:
        """The ways of what is sent, made anew by the first send after a fork.

        On its caller's thread, never in a coroutine that the connection's loop runs: that loop has a part in making.
        """
        return self._made or self._make_paths()

    def _make_paths(self) -> SendPaths:
        with self._making:  # a second thread would make ways that nobody closes
            if self._made is None:
                made = SendPaths.make(self._mq, self._options, self._defaults, owner=self)
                if self._made is None:
                    self._made = made
                else:  # a signal handler has made others meanwhile, and uses them
                    made.begin_close_outbox(self._mq)  # type: ignore[unreachable]
            return self._made

    def _begin_anew(self) -> None:
        """In a forked child: what was gathered is the parent's to send."""
        leave_to_parent(self._made)  # of which an outbox's file is open
        self._made = None
        self._making = threading.RLock()
        self._under_way = set()
        self._closing = threading.Lock()
        self._closer = None
        self._mq.adopt(self)

    def _terms(self, message: Message, options: Any, *, in_background: bool = False) -> Terms:
        self._check_open()
        return self._defaults.terms(message.topic, options, delayed=message.is_delayed, in_background=in_background)

    def _batch_terms(self, messages: Sequence[Message], options: Any) -> Terms:
        self._check_open()
        try:
            topics, delayed = set(map(_topic, messages)), any(map(_is_delayed, messages))
        except (AttributeError, TypeError):
            raise WrongType("messages", "a list of Message objects", messages) from None
        if len(topics) != 1:
            raise InvalidInput("messages", limits.ONE_TOPIC, sorted(topics))
        if delayed:
            raise InvalidInput("messages", limits.AT_ONCE, "delay_level or deliver_at")
        return self._defaults.terms(messages[0].topic, options)

    def _born_host(self) -> bytes:
        return packed_host(self._mq.pool.local_host)

    def _send_parts(self, topic: str, parts: BatchParts, terms: Terms, outcomes: list[tuple[int, PartOutcome]]) -> None:
        """Send parts, the next one being encoded while the last ones are on their way; in order to a fixed queue.

        `outcomes` gets of each part that was tried its count and what became of it, in order, also where this raises:
        behind a part that failed no other one is begun.
        """
        terms = self._limits.check(topic, parts, terms)
        ahead = 1 if terms.queue is not None or terms.sharding_key is not None else _PARTS_AHEAD
        under_way: deque[tuple[BatchPart, Callable[[], Sent]]] = deque()

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
            while under_way:  # after an error: the others' outcomes shall be settled, too
                with contextlib.suppress(RayMQError):
                    settle()

    def _begin(self, topic: str, part: BatchPart, terms: Terms) -> Callable[[], Sent]:
        """Send a part; returns what waits for its outcome."""
        sends, direct = self._paths.sends, self._paths.direct
        if direct is None or terms.insist_on_ok:
            return self._mq.submit(sends.send(topic, part.records, part.sizes, terms)).result
        return partial(direct.finish, direct.begin(topic, part.records, part.sizes, terms))

    async def _send_batch(self, sends: Sends, messages: Sequence[Message], terms: Terms) -> Sequence[SendResult]:
        numbers = key_numbers(messages)
        topic, parts = messages[0].topic, message_parts(messages, numbers, self._born_host())
        terms = await self._limits.acheck(topic, parts, terms)
        outcomes: list[tuple[int, PartOutcome]] = []
        for part in parts:
            try:
                sent = await sends.send(topic, part.records, part.sizes, terms)
            except RayMQError as error:
                outcomes.append((len(part.sizes), error))
                raise _failed_batch(error, outcomes, numbers) from error
            outcomes.append((len(part.sizes), sent))
        return BatchResults([sent for _, sent in outcomes if isinstance(sent, Sent)], numbers)

    def _in_background(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        future: CallbackFuture[_T] = CallbackFuture(self._mq.callbacks)
        self._under_way.add(future)
        try:
            working = self._mq.submit(coroutine)
        except BaseException:
            self._under_way.discard(future)
            raise
        working.add_done_callback(partial(self._settle, future))
        return future

    def _settle(self, future: Future[_T], working: Future[_T]) -> None:
        self._under_way.discard(future)
        if working.cancelled():
            future.set_exception(OutcomeUnknown("closed before an answer came"))
        elif (error := working.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(working.result())

    async def _send_one(self, sends: Sends, message: Message, terms: Terms) -> SendResult:
        records, sizes = encode_messages([message], [message.unique_key], self._born_host())
        return _result(message, await sends.send(message.topic, records, sizes, terms))

    async def _check_queue(self, queue: MessageQueue, timeout: float) -> None:
        """QueueNotFound where the routes, asked anew if need be, say so; other trouble is the send's own."""
        routes = self._mq.routes
        try:
            route = await routes.get(queue.topic, timeout=timeout)
            if queue not in route.writable():
                route = await routes.get(queue.topic, fresh=True, timeout=timeout)
        except RayMQError:
            return
        if queue not in route.writable() and not route.forbids(queue) and queue.broker in route.addresses:
            raise queue_not_found(queue)

    async def _forget(self, sends: Sends, message: Message, terms: Terms) -> None:
        try:
            await self._send_one(sends, message, terms)
        except RayMQError:
            return


#: The calls that wait for an answer on the thread that makes them, and those that only begin something there.
_BLOCKING: Final = {Producer.send.__code__, Producer.send_batch.__code__, Producer.send_table.__code__}
_sending = (Producer.asend, Producer.asend_batch, Producer.send_async, Producer.send_oneway)
_BEGINNING: Final = {each.__code__ for each in _sending}


def _broken_off() -> OutcomeUnknown:
    """What is told of a send that had begun when the connection was closed: of its tries nobody knows any more."""
    return OutcomeUnknown("closed before an answer came")


def _failed_batch(
    error: RayMQError, outcomes: Sequence[tuple[int, PartOutcome]], numbers: Sequence[str | int]
) -> RayMQError:
    """What a batch raises of which these parts were tried; `error` where none was."""
    return batch_error(outcomes, numbers) if outcomes else error


def _result(message: Message, sent: Sent) -> SendResult:
    """What the caller is told of the one message in `sent`."""
    result = results_of(sent, [message.unique_key])[0]
    return result._replace(recall_handle=_recall_handle(message, sent)) if message.is_delayed else result


def _recall_handle(message: Message, sent: Sent) -> str | None:
    """None unless the message waits for a time of its own."""
    due_ms = message.due_ms
    if due_ms is None or sent.placed.topic != TIMER_TOPIC:
        return None
    brokers = (sent.queue.broker, *sent.doubtful)
    return encode_handles([RecallHandle(message.topic, broker, due_ms, message.unique_key) for broker in brokers])
