"""Administration: topics, statistics, progress of groups, single messages, dead letters, the cluster's state."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from raymq.actors.core.assignment import average
from raymq.actors.errors import (
    BrokerUnavailable,
    ClientClosed,
    GroupNotFound,
    InvalidInput,
    MessageNotFound,
    RayMQError,
)
from raymq.actors.naming import check_group, check_sendable, check_topic, is_system_topic, reply_topic
from raymq.actors.protocol import BrokerInfo, MessageQueue
from raymq.actors.wire import admin as wire_admin
from raymq.actors.wire import group as wire_group
from raymq.actors.wire import query as wire_query
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.admin import ResetOffset
from raymq.client import dead_letters
from raymq.client.connection import Connection
from raymq.client.dead_letters import DeadMessage, RedriveResult
from raymq.client.fetching import patiently
from raymq.client.message import ReceivedMessage
from raymq.client.results import (
    ClusterInfo,
    NameServerInfo,
    QueueProgress,
    QueueStats,
    SchedulerInfo,
)
from raymq.storage import message_id as message_ids

_REQUEST_SECONDS = 5.0
_STATUS_SECONDS = 2.0
_FAR_FUTURE_MS = 1 << 62

_T = TypeVar("_T")


class Admin:
    """Asks and changes a cluster. Thread-safe; a context manager. What reaches no broker raises BrokerUnavailable."""

    def __init__(self, mq: Connection) -> None:
        self._mq = mq
        self._closed = False
        mq.adopt(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create_topic(self, topic: str, queues: int = 4, ordered: bool = False) -> None:
        """Make a topic of `queues` queues on every broker. Asked again with the same settings it changes nothing.

        Raises:
            TopicExists: it is there with other settings.
        """
        check_sendable(topic)
        command = lambda: wire_admin.create_topic_command(topic, queues, ordered=ordered)  # noqa: E731
        self._run(self._on_every_broker(command))
        self._mq.routes.forget(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on every broker; TopicNotFound if nobody has it."""
        check_sendable(topic)
        self._run(self._mq.routes.get(topic, fresh=True))
        self._run(self._on_every_broker(lambda: wire_admin.delete_topic_command(topic, from_broker=True)))
        self._run(self._on_every_name_server(lambda: wire_admin.delete_topic_command(topic, from_broker=False)))
        self._mq.routes.forget(topic)

    def topics(self, system: bool = False) -> list[str]:
        """The names of all topics, sorted; the system's own and those of groups only with `system`."""
        if system:
            return self._run(self._mq.routes.topics())
        brokers = self._run(self._mq.routes.cluster()).brokers
        own = {name for broker, (cluster, _) in brokers.items() for name in (broker, cluster, reply_topic(cluster))}
        return [t for t in self._run(self._mq.routes.topics()) if not is_system_topic(t) and t not in own]

    def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """What each queue of a topic holds; TopicNotFound."""
        check_topic(topic)
        answers = self._run(self._on_brokers_of(topic, lambda: wire_admin.topic_stats_command(topic)))
        return {
            queue: QueueStats(values["minOffset"], values["maxOffset"], values["lastUpdateTimestamp"] / 1000)
            for answer in answers
            for queue, values in sorted(wire_admin.read_queue_table(answer).items())
        }

    def group_progress(self, group: str) -> dict[MessageQueue, QueueProgress]:
        """How far a group is in each queue, its retry topic included; None where unknown, never 0.

        Raises:
            GroupNotFound: no broker knows it.
        """
        check_group(group)
        found: dict[MessageQueue, dict[str, Any]] = {}
        missing = 0
        answers = self._run(self._ask_all(lambda: wire_admin.consume_stats_command(group)))
        for answer in answers:
            if isinstance(answer, GroupNotFound):
                missing += 1
            elif isinstance(answer, RayMQError):
                raise answer
            else:
                found.update(wire_admin.read_queue_table(answer))
        if missing == len(answers):
            raise GroupNotFound(f"consumer group {group} does not exist")
        owners = self._run(self._owners(group, list(found)))
        progress = {}
        for queue, values in sorted(found.items()):
            committed = values["raymqCommitted"]
            lag = None if committed is None else values["brokerOffset"] - committed
            progress[queue] = QueueProgress(committed, values["brokerOffset"], lag, owners.get(queue))
        return progress

    def reset_offset_by_time(self, group: str, topic: str, timestamp: float) -> None:
        """Send a group, running or not, to the first message stored at `timestamp` (seconds) or later, else to the end.

        Raises:
            GroupNotFound, TopicNotFound: there is none.
            BrokerUnavailable: a broker of the topic did not answer; the others may have done it.
        """
        check_group(group)
        check_topic(topic)
        timestamp_ms = math.ceil(timestamp * 1000)
        self._run(self._on_brokers_of(topic, lambda: ResetOffset(topic, group, timestamp=timestamp_ms).command()))

    def query_by_id(self, message_id: str) -> ReceivedMessage:
        """The message at the place that an id names: MessageNotFound, MessageExpired or BrokerUnavailable if not."""
        host, port, physical_offset = message_ids.decode(message_id)
        address = f"{host}:{port}"
        command = wire_query.view_command(physical_offset)
        answer = self._run(self._mq.pool.request(address, command, _REQUEST_SECONDS))
        return ReceivedMessage.from_record(wire_query.read_records(answer)[0], self._broker_at(address))

    def query_by_unique_key(self, topic: str, unique_key: str) -> ReceivedMessage:
        """The newest message of `topic` with that unique key; MessageNotFound."""
        for message in self._query(topic, unique_key, None, None, 32, unique=True):
            if message.unique_key == unique_key:
                return message
        raise MessageNotFound(f"no message of {topic} has the unique key {unique_key}")

    def query_by_key(
        self, topic: str, key: str, begin: float | None = None, end: float | None = None, limit: int = 64
    ) -> list[ReceivedMessage]:
        """Messages of `topic` that carry `key`, newest store time first, at most `limit` over all brokers.

        Args:
            begin, end: store time in seconds, inclusive, whole seconds.
        """
        if limit < 1:
            raise InvalidInput("limit", "at least 1", limit)
        found = self._query(topic, key, begin, end, limit, unique=False)
        return [message for message in found if key in message.keys][:limit]

    def cluster_info(self) -> ClusterInfo:
        """The brokers, name servers and scheduler as they answer now; one that does not is "unreachable"."""
        view = self._run(self._mq.routes.cluster())
        names = sorted(view.masters.items())
        brokers = self._run(self._each(names, self._status))
        servers = self._run(self._each(list(self._mq.name_servers), self._name_server))
        beats = [broker for broker in brokers if broker.scheduler_pid is not None]
        scheduler = (
            SchedulerInfo(beats[0].scheduler_pid, max(b.lateness for b in beats))
            if beats
            else SchedulerInfo(None, None)
        )
        return ClusterInfo(brokers, servers, scheduler)

    def dlq_list(self, group: str, limit: int = 1000) -> list[DeadMessage]:
        """The messages that a group gave up on, the oldest death first, at most `limit` over all brokers.

        Raises:
            GroupNotFound: no broker knows the group.
        """
        if limit < 1:
            raise InvalidInput("limit", "at least 1", limit)
        self.group_progress(group)

        async def collect() -> list[DeadMessage]:
            return [message async for message in dead_letters.read(self._mq, group, limit)]

        found = self._run(collect())
        return sorted(found, key=lambda message: (message.dead_at, message.queue, message.queue_offset))[:limit]

    def dlq_messages(self, group: str) -> Iterator[DeadMessage]:
        """All messages that a group gave up on, a page in memory at a time; broker by broker, the oldest death first.

        Raises:
            GroupNotFound: no broker knows the group; raised by the call, not by the first message.
        """
        self.group_progress(group)
        found = dead_letters.read(self._mq, group)

        async def following() -> DeadMessage | None:
            return await anext(found, None)

        def messages() -> Iterator[DeadMessage]:
            while (message := self._run(following())) is not None:
                yield message

        return messages()

    def dlq_redrive(
        self,
        group: str,
        ids: Iterable[str] | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        *,
        force: bool = False,
    ) -> RedriveResult:
        """Send dead letters to their group, and to that group only, once more: with no retry behind them.

        Args:
            ids: which ones, by the message ids of `dlq_list`; None = all.
            rate: at most so many a second.
            dry_run: say what would be done, and do nothing.
            force: also those that were redriven before.

        Raises:
            GroupNotFound: no broker knows the group.
            BrokerUnavailable: a broker did not answer. Asked again, what was redriven meanwhile is in `already`.
        """
        self.group_progress(group)
        return self._run(dead_letters.redrive(self._mq, group, ids, rate, dry_run=dry_run, force=force))

    def close(self, timeout: float = 10.0) -> None:  # noqa: ARG002 - every client's close has it
        """Ask no more."""
        self._closed = True

    # -- asking brokers -------------------------------------------------------------------------------------------

    def _query(
        self, topic: str, key: str, begin: float | None, end: float | None, limit: int, *, unique: bool
    ) -> list[ReceivedMessage]:
        check_topic(topic)
        begin_ms = 0 if begin is None else int(begin) * 1000
        end_ms = _FAR_FUTURE_MS if end is None else int(end) * 1000 + 999
        route = self._run(self._mq.routes.get(topic))

        async def ask(item: tuple[str, str]) -> list[ReceivedMessage]:
            broker, address = item
            command = wire_query.query_command(topic, key, begin_ms, end_ms, limit, unique=unique)
            try:
                answer = await patiently(
                    lambda: self._mq.pool.request(address, command, _REQUEST_SECONDS), _REQUEST_SECONDS
                )
            except MessageNotFound:
                return []
            return [ReceivedMessage.from_record(record, broker) for record in wire_query.read_records(answer)]

        lists = self._run(self._each(sorted(route.addresses.items()), ask))
        found = [message for messages in lists for message in messages]
        return sorted(found, key=lambda message: (message.store_timestamp, message.physical_offset), reverse=True)

    async def _on_every_broker(self, command: Callable[[], Command]) -> list[Command]:
        """The answers of all brokers; the first error is raised."""
        answers = await self._ask_all(command)
        for answer in answers:
            if isinstance(answer, RayMQError):
                raise answer
        return [answer for answer in answers if isinstance(answer, Command)]

    async def _ask_all(self, command: Callable[[], Command]) -> list[Command | RayMQError]:
        async def masters() -> list[str]:
            found = list((await self._mq.routes.cluster()).masters.values())
            if not found:
                raise BrokerUnavailable("cluster", "no broker is registered with the name server")
            return found

        async def ask(address: str) -> Command | RayMQError:
            try:
                return await patiently(
                    lambda: self._mq.pool.request(address, command(), _REQUEST_SECONDS), _REQUEST_SECONDS
                )
            except RayMQError as error:
                return error

        return await self._each(await patiently(masters, _REQUEST_SECONDS), ask)

    async def _owners(self, group: str, queues: list[MessageQueue]) -> dict[MessageQueue, str]:
        """Which member each queue falls to, by the rule that every member follows."""
        answers = await self._ask_all(lambda: wire_group.members_command(group))
        members = {m for answer in answers if isinstance(answer, Command) for m in wire_group.read_members(answer)}
        owners: dict[MessageQueue, str] = {}
        for topic in {queue.topic for queue in queues}:
            of_topic = [queue for queue in queues if queue.topic == topic]
            for member in members:
                owners |= dict.fromkeys(average(of_topic, sorted(members), member), member)
        return owners

    async def _on_brokers_of(self, topic: str, command: Callable[[], Command]) -> list[Command]:
        route = await self._mq.routes.get(topic, fresh=True)

        async def ask(address: str) -> Command:
            return await patiently(
                lambda: self._mq.pool.request(address, command(), _REQUEST_SECONDS), _REQUEST_SECONDS
            )

        return await self._each(sorted(route.addresses.values()), ask)

    async def _on_every_name_server(self, command: Callable[[], Command]) -> list[Command]:
        return await self._each(
            self._mq.name_servers, lambda address: self._mq.pool.request(address, command(), _REQUEST_SECONDS)
        )

    async def _each(self, items: list[Any], ask: Callable[[Any], Awaitable[_T]]) -> list[_T]:
        return list(await asyncio.gather(*(ask(item) for item in items)))

    async def _status(self, item: tuple[str, str]) -> BrokerInfo:
        name, address = item
        try:
            answer = await self._mq.pool.request(address, wire_admin.status_command(), _STATUS_SECONDS)
        except RayMQError:
            return BrokerInfo(name, 0, "master", "unreachable", 0, address, 0, "", "", 0.0)
        return wire_admin.read_status(answer)

    async def _name_server(self, address: str) -> NameServerInfo:
        try:
            answer = await self._mq.pool.request(address, wire_admin.status_command(), _STATUS_SECONDS)
        except RayMQError:
            return NameServerInfo(address, None)
        return NameServerInfo(address, answer.fields["pid"])

    def _broker_at(self, address: str) -> str:
        masters = self._run(self._mq.routes.cluster()).masters
        return next((name for name, known in masters.items() if known == address), address)

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        if self._closed:
            coroutine.close()
            raise ClientClosed("the admin client is closed")
        return self._mq.run(coroutine)
