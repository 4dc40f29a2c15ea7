"""Administration: topics, statistics, progress of groups, single messages, dead letters, the cluster's state.

Each call has a twin for asyncio code, whose name begins with `a` and which may be awaited on any event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from raymq.actors.errors import ClientClosed
from raymq.actors.naming import MAX_QUEUES
from raymq.actors.protocol import MessageQueue
from raymq.client import arguments
from raymq.client.admin import brokers as admin_brokers
from raymq.client.admin import cluster as admin_cluster
from raymq.client.admin import dead_letters, elections, reading
from raymq.client.admin import groups as admin_groups
from raymq.client.admin import messages as admin_messages
from raymq.client.admin import topics as admin_topics
from raymq.client.admin.broker_changes import BrokerChanges
from raymq.client.admin.dead_letters import DeadMessage, RedriveResult
from raymq.client.admin.operation import Operation
from raymq.client.admin.reading import Place
from raymq.client.client_base import check_connection
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.results import (
    ClusterInfo,
    Election,
    FoundMessages,
    GroupDeletion,
    GroupProgress,
    GroupSummary,
    QueueStats,
)
from raymq.client.timestamps import milliseconds_or_end

if TYPE_CHECKING:
    import pyarrow as pa


class Admin(BrokerChanges):
    """Asks and changes a cluster. Thread-safe; a context manager. What reaches no broker raises BrokerUnavailable.

    A change that a broker did not take is told by an error, and may be asked for again: what is done stays done.
    """

    KIND = "admin client"

    def __init__(self, mq: Connection) -> None:
        check_connection(mq)
        super().__init__(mq)
        #: What was there when it was last asked for, so that it is told as unknown when its broker is gone.
        self._brokers_seen: dict[tuple[str, int], str] = {}
        self._queues_seen: dict[str, set[MessageQueue]] = defaultdict(set)
        mq.adopt(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Admin, (self._mq,)

    # -- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, queues: int = 4, ordered: bool = False) -> None:
        """Make a topic of `queues` queues on every broker. Asked again with the same settings it changes nothing.

        Raises:
            TopicExists: it is there with other settings.
        """
        self._run(admin_topics.create(self._mq, topic, queues, ordered=ordered))

    async def acreate_topic(self, topic: str, queues: int = 4, ordered: bool = False) -> None:
        """`create_topic` for asyncio code."""
        await self._arun(admin_topics.create(self._mq, topic, queues, ordered=ordered))

    def update_topic(
        self,
        topic: str,
        queues: int | None = None,
        ordered: bool | None = None,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Change a topic on every broker that has it; what is None stays.

        Args:
            queues: on each broker, to read and to write. Messages in queues beyond are kept, and not delivered.
            read_queues, write_queues: one of the two alone. To take queues away, write fewer first, and read fewer
                when the rest is consumed.
            permission: a sum of 4 (read) and 2 (write).
            dry_run: raise what the change would, and change nothing.

        Raises:
            TopicNotFound, InvalidInput.
        """
        self._run(self._update_topic(topic, queues, ordered, read_queues, write_queues, permission, dry_run))

    async def aupdate_topic(
        self,
        topic: str,
        queues: int | None = None,
        ordered: bool | None = None,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """`update_topic` for asyncio code."""
        await self._arun(self._update_topic(topic, queues, ordered, read_queues, write_queues, permission, dry_run))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on every broker; TopicNotFound if nobody has it."""
        self._run(admin_topics.delete(self._mq, topic))

    async def adelete_topic(self, topic: str) -> None:
        """`delete_topic` for asyncio code."""
        await self._arun(admin_topics.delete(self._mq, topic))

    def topics(self, system: bool = False) -> list[str]:
        """The names of all topics, sorted; the system's own and those of groups only with `system`."""
        return self._run(admin_topics.names(self._mq, system=system))

    async def atopics(self, system: bool = False) -> list[str]:
        """`topics` for asyncio code."""
        return await self._arun(admin_topics.names(self._mq, system=system))

    def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """What each queue of a topic holds; TopicNotFound."""
        return self._run(admin_topics.stats(self._mq, topic))

    async def atopic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """`topic_stats` for asyncio code."""
        return await self._arun(admin_topics.stats(self._mq, topic))

    # -- groups --------------------------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The names of all consumer groups, sorted."""
        return self._run(admin_groups.names(self._mq))

    async def agroups(self) -> list[str]:
        """`groups` for asyncio code."""
        return await self._arun(admin_groups.names(self._mq))

    def group_list(self) -> list[GroupSummary]:
        """All consumer groups with the number of their members and their lag, sorted by name."""
        return self._run(admin_groups.summaries(self._mq))

    async def agroup_list(self) -> list[GroupSummary]:
        """`group_list` for asyncio code."""
        return await self._arun(admin_groups.summaries(self._mq))

    def delete_group(self, group: str, dead_letters: bool = False, dry_run: bool = False) -> GroupDeletion:
        """Delete a consumer group: its offsets, what is lent to it, and its retry topic with what waits for it.

        A consumer that starts with the name makes a new group. A broker that is away keeps what it has of the group,
        and comes back with it: call this again then.

        Args:
            dead_letters: delete its dead letters too; else they stay, and can be listed, exported and deleted.
            dry_run: say what would be deleted, and change nothing.

        Raises:
            GroupNotFound: no broker has anything of it.
            InvalidInput: it has members, or has committed in the last 60 s (pull consumers and Spark are no members).
            BrokerUnavailable: a broker did not answer, or is away; the others may have deleted it. Call it again.
        """
        return self._run(admin_groups.delete(self._mq, group, dead_letters=dead_letters, dry_run=dry_run))

    async def adelete_group(self, group: str, dead_letters: bool = False, dry_run: bool = False) -> GroupDeletion:
        """`delete_group` for asyncio code."""
        return await self._arun(admin_groups.delete(self._mq, group, dead_letters=dead_letters, dry_run=dry_run))

    def forget_topic(self, group: str, topic: str) -> int:
        """Forget a group's progress in a topic that it does not consume any more; return in how many queues it had any.

        Raises:
            GroupNotFound: no broker knows the group. InvalidInput: one of its members subscribes to the topic.
        """
        return self._run(admin_groups.forget_topic(self._mq, group, topic))

    async def aforget_topic(self, group: str, topic: str) -> int:
        """`forget_topic` for asyncio code."""
        return await self._arun(admin_groups.forget_topic(self._mq, group, topic))

    def group_progress(self, group: str) -> GroupProgress:
        """How far a group is in each queue, its retry topic included; None where unknown, never 0.

        Its `missing_topics` are those that members wait for, since they do not exist.

        Raises:
            GroupNotFound: no broker knows it.
        """
        return self._run(self._group_progress(group))

    async def agroup_progress(self, group: str) -> GroupProgress:
        """`group_progress` for asyncio code."""
        return await self._arun(self._group_progress(group))

    def reset_offset_by_time(
        self, group: str, topic: str, timestamp: float | datetime, *, dry_run: bool = False
    ) -> dict[MessageQueue, int]:
        """Send a group, running or not, to the first messages of `topic` stored at `timestamp` or later.

        A time in the future is the end. A running member goes there with its next fetch; what it was given before has
        no effect any more: neither its commits nor the handles of a simple consumer.

        Args:
            timestamp: seconds since 1970, or a datetime with a time zone; `math.inf` is the end.
            dry_run: say where it would go, and change nothing.

        Returns:
            The offset at which each queue goes on.

        Raises:
            GroupNotFound, TopicNotFound.
            InvalidInput: `timestamp` is no such time, or more than 100 years ahead (milliseconds, for example).
        """
        return self._run(self._reset(group, topic, timestamp, dry_run=dry_run))

    async def areset_offset_by_time(
        self, group: str, topic: str, timestamp: float | datetime, *, dry_run: bool = False
    ) -> dict[MessageQueue, int]:
        """`reset_offset_by_time` for asyncio code."""
        return await self._arun(self._reset(group, topic, timestamp, dry_run=dry_run))

    def skip(self, group: str, topic: str, *, dry_run: bool = False) -> dict[MessageQueue, int]:
        """Send a group behind the last message of `topic`; as `reset_offset_by_time` else."""
        return self._run(self._reset(group, topic, math.inf, dry_run=dry_run))

    async def askip(self, group: str, topic: str, *, dry_run: bool = False) -> dict[MessageQueue, int]:
        """`skip` for asyncio code."""
        return await self._arun(self._reset(group, topic, math.inf, dry_run=dry_run))

    # -- messages ------------------------------------------------------------------------------------------------

    def query_by_id(self, message_id: str) -> ReceivedMessage:
        """The message at the place that an id names: MessageNotFound, MessageExpired or BrokerUnavailable if not."""
        return self._run(admin_messages.by_id(self._mq, message_id))

    async def aquery_by_id(self, message_id: str) -> ReceivedMessage:
        """`query_by_id` for asyncio code."""
        return await self._arun(admin_messages.by_id(self._mq, message_id))

    def query_by_unique_key(self, topic: str, unique_key: str) -> ReceivedMessage:
        """The newest message of `topic` with that unique key, of the brokers that are there.

        Raises:
            MessageNotFound: all brokers say that they have none.
            BrokerUnavailable: those that are there have none; a broker of the topic is away.
        """
        return self._run(admin_messages.by_unique_key(self._mq, topic, unique_key))

    async def aquery_by_unique_key(self, topic: str, unique_key: str) -> ReceivedMessage:
        """`query_by_unique_key` for asyncio code."""
        return await self._arun(admin_messages.by_unique_key(self._mq, topic, unique_key))

    def query_by_key(
        self,
        topic: str,
        key: str,
        begin: float | datetime | None = None,
        end: float | datetime | None = None,
        limit: int = 64,
    ) -> FoundMessages[ReceivedMessage]:
        """Messages of `topic` that carry `key`, newest store time first, at most `limit` over all brokers.

        Args:
            begin, end: store time, inclusive, in whole seconds: seconds since 1970, or datetimes with a time zone.

        Raises:
            BrokerUnavailable: none was found, and a broker of the topic is away. Where some were found, `.not_asked` of
                the result names such brokers, and a warning is logged.

        Returns:
            a list whose `.truncated` says whether there are more; `query_messages` goes on to the end.
        """
        return self._run(admin_messages.by_key(self._mq, topic, key, begin, end, limit))

    async def aquery_by_key(
        self,
        topic: str,
        key: str,
        begin: float | datetime | None = None,
        end: float | datetime | None = None,
        limit: int = 64,
    ) -> FoundMessages[ReceivedMessage]:
        """`query_by_key` for asyncio code."""
        return await self._arun(admin_messages.by_key(self._mq, topic, key, begin, end, limit))

    def query_messages(
        self, topic: str, key: str, begin: float | datetime | None = None, end: float | datetime | None = None
    ) -> Iterator[ReceivedMessage]:
        """All messages of `topic` that carry `key`, newest store time first, a page of each broker in memory at a time.

        Args:
            begin, end: as in `query_by_key`.

        Raises:
            TopicNotFound, InvalidInput, and the rest as `query_by_key`: with the first message.
        """
        found = admin_messages.all_by_key(self._mq, topic, key, begin, end)
        while (message := self._run(admin_messages.following(found))) is not None:
            yield message

    async def aquery_messages(
        self, topic: str, key: str, begin: float | datetime | None = None, end: float | datetime | None = None
    ) -> AsyncIterator[ReceivedMessage]:
        """`query_messages` for asyncio code: `async for message in admin.aquery_messages(topic, key)`."""
        found = admin_messages.all_by_key(self._mq, topic, key, begin, end)
        while (message := await self._arun(admin_messages.following(found))) is not None:
            yield message

    def read_table(
        self,
        topic: str,
        start: Place = "earliest",
        end: Place = "latest",
        tags: str = "*",
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
    ) -> pa.Table:
        """Return the messages of `topic` from `start` to `end` (not included) as an Arrow table. It leaves no group.

        Which messages these are is fixed when it is called. Rows come queue by queue, in the queue's order; columns are
        those of a Spark read, with the queue as `broker` and `queue_id`. All of it is in memory at once. The dead
        letters of a group that has none are a table without rows.

        Args:
            start, end: "earliest", "latest", a time (seconds since 1970, or a datetime with a time zone), "group:NAME"
                (where the group goes on) or {MessageQueue: offset}, which leaves out the queues that it does not name.
            tags: "*", "a" or "a || b".
            columns: only these, in this order; without "body" bodies do not leave the brokers.
            max_rows: read no more than so many; None: all.

        Raises:
            TopicNotFound, GroupNotFound, QueueNotFound, OffsetOutOfRange, InvalidInput: what is named is not there.
            OffsetOutOfRange: also where messages expire while they are read.
            BrokerUnavailable: a broker of the topic did not come back within 30 s.
            StoreCorrupt: a message is damaged in its broker's file.
        """
        self._check_open()
        return reading.table(self._mq, topic, start, end, tags, columns, max_rows)

    async def aread_table(
        self,
        topic: str,
        start: Place = "earliest",
        end: Place = "latest",
        tags: str = "*",
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
    ) -> pa.Table:
        """`read_table` for asyncio code: it reads on another thread."""
        return await asyncio.to_thread(self.read_table, topic, start, end, tags, columns, max_rows)

    def tail(
        self, topic: str, start: Place = "latest", tags: str = "*", *, follow: bool = True
    ) -> Generator[ReceivedMessage]:
        """The messages of `topic` from `start` on, and with `follow` those that come, without end. It leaves no group.

        Messages come in the order of their queues; damaged ones are passed over.

        Args:
            start: as in `read_table`.
            tags: "*", "a" or "a || b".
            follow: False: end where the topic ends now.

        Raises:
            TopicNotFound, InvalidInput, and the rest as `read_table`: with the first message.
        """
        found = reading.messages(self._mq, topic, start, tags, follow=follow)
        try:
            while (message := self._run(reading.following(found))) is not None:
                yield message
        finally:
            with contextlib.suppress(ClientClosed):
                self._run(reading.close(found))

    async def atail(
        self, topic: str, start: Place = "latest", tags: str = "*", *, follow: bool = True
    ) -> AsyncIterator[ReceivedMessage]:
        """`tail` for asyncio code: `async for message in admin.atail(topic)`."""
        found = reading.messages(self._mq, topic, start, tags, follow=follow)
        try:
            while (message := await self._arun(reading.following(found))) is not None:
                yield message
        finally:
            with contextlib.suppress(ClientClosed):
                await self._arun(reading.close(found))

    # -- dead letters --------------------------------------------------------------------------------------------

    def dlq_list(self, group: str, limit: int = 1000) -> FoundMessages[DeadMessage]:
        """The messages that a group gave up on, the oldest death first, at most `limit` over all brokers.

        What is damaged in a broker's files is left out: `.unreadable` of the result names it, and it is logged.
        `.truncated` of the result says whether there are more; `dlq_messages` goes on to the end.

        Raises:
            GroupNotFound: no broker knows the group.
            BrokerUnavailable: none was found, and a broker is away. Where some were found, `.not_asked` of the result
                names such brokers, and a warning is logged.
        """
        return self._run(dead_letters.first(self._mq, group, limit))

    async def adlq_list(self, group: str, limit: int = 1000) -> FoundMessages[DeadMessage]:
        """`dlq_list` for asyncio code."""
        return await self._arun(dead_letters.first(self._mq, group, limit))

    def dlq_messages(self, group: str) -> Iterator[DeadMessage]:
        """All messages that a group gave up on, a page in memory at a time; broker by broker, the oldest death first.

        Raises:
            GroupNotFound: no broker knows the group; raised by the call, not by the first message.
        """
        self._run(admin_groups.check_exists(self._mq, group, dead_letters=True))
        found = dead_letters.read(self._mq, group)

        def messages() -> Iterator[DeadMessage]:
            while (message := self._run(dead_letters.following(found))) is not None:
                yield message

        return messages()

    async def adlq_messages(self, group: str) -> AsyncIterator[DeadMessage]:
        """`dlq_messages` for asyncio code: `async for message in admin.adlq_messages(group)`."""
        await self._arun(admin_groups.check_exists(self._mq, group, dead_letters=True))
        found = dead_letters.read(self._mq, group)
        while (message := await self._arun(dead_letters.following(found))) is not None:
            yield message

    def dlq_delete(self, group: str, ids: Iterable[str] | None = None) -> int:
        """Delete dead letters of a group; return how many there were. They are listed and redriven no more.

        Their bytes stay in the brokers' logs until these expire, as those of any message.

        Args:
            ids: which ones, by the message ids of `dlq_list`; None = all.

        Raises:
            GroupNotFound: no broker knows the group.
            BrokerUnavailable: a broker did not answer, or one is away and no other one has any of them. Call it again.
        """
        return self._run(dead_letters.delete(self._mq, group, ids))

    async def adlq_delete(self, group: str, ids: Iterable[str] | None = None) -> int:
        """`dlq_delete` for asyncio code."""
        return await self._arun(dead_letters.delete(self._mq, group, ids))

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
            BrokerUnavailable: a broker did not answer, or one is away and no other one has any of them. Asked again,
                what was redriven meanwhile is in `already`.
        """
        return self._run(dead_letters.redrive(self._mq, group, ids, rate, dry_run=dry_run, force=force))

    async def adlq_redrive(
        self,
        group: str,
        ids: Iterable[str] | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        *,
        force: bool = False,
    ) -> RedriveResult:
        """`dlq_redrive` for asyncio code."""
        return await self._arun(dead_letters.redrive(self._mq, group, ids, rate, dry_run=dry_run, force=force))

    # -- the cluster ---------------------------------------------------------------------------------------------

    def cluster_info(self) -> ClusterInfo:
        """The brokers, name servers and scheduler as they answer now; one that does not is "unreachable"."""
        return self._run(self._cluster_info())

    async def acluster_info(self) -> ClusterInfo:
        """`cluster_info` for asyncio code."""
        return await self._arun(self._cluster_info())

    def elect(
        self, broker: str, replica: int | None = None, unclean: bool = False, *, dry_run: bool = False
    ) -> Operation[Election]:
        """See to it that a broker has a master, and that it is `replica`, if that is named.

        A replica becomes master only if it has everything that was acknowledged; a master that serves hands over to it,
        and producers go on within a second or two. Nothing is done where no replica is named and a master serves.

        Args:
            replica: counted from 0, as in `cluster_info()`.
            unclean: where no replica in sync is there, let one become master that may lack acknowledged messages.
            dry_run: say how the broker stands, and change nothing.

        Returns:
            the operation; its `wait` raises ElectionFailed, BrokerGroupNotFound or BrokerUnavailable.

        Raises:
            InvalidInput: an argument breaks its rule.
        """
        name, number = elections.checked(broker, replica)
        doing = elections.elect(self._mq, name, number, unclean=unclean, dry_run=dry_run)
        return Operation(f"election of a master of {name}", self._mq.submit(doing), elections.in_words)

    async def aelect(
        self, broker: str, replica: int | None = None, unclean: bool = False, *, dry_run: bool = False
    ) -> Election:
        """`elect` for asyncio code: returns once it is done."""
        name, number = elections.checked(broker, replica)
        return await self._arun(elections.elect(self._mq, name, number, unclean=unclean, dry_run=dry_run))

    def forget_broker(self, broker: str) -> None:
        """Say that a broker which is away is gone for good, so that new sinks and streams need not wait for it.

        What only it knew is lost with it: of a series of writes or a stream that has its home there nobody else can say
        what was committed. It must not be started again with its directory. All other brokers have to be there.

        Raises:
            InvalidInput: it is there. BrokerUnavailable: a broker or name server does not answer; call it again.
        """
        self._run(admin_brokers.forget(self._mq, broker))

    async def aforget_broker(self, broker: str) -> None:
        """`forget_broker` for asyncio code."""
        await self._arun(admin_brokers.forget(self._mq, broker))

    # -- on the connection's loop --------------------------------------------------------------------------------

    async def _update_topic(
        self,
        topic: str,
        queues: int | None,
        ordered: bool | None,
        read_queues: int | None,
        write_queues: int | None,
        permission: int | None,
        dry_run: bool,
    ) -> None:
        if queues is not None:
            arguments.whole("queues", queues, 1, MAX_QUEUES)
        await admin_topics.update(
            self._mq,
            topic,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            permission=permission,
            ordered=ordered,
            dry_run=dry_run,
        )

    async def _group_progress(self, group: str) -> GroupProgress:
        progress = await admin_groups.progress(self._mq, group, self._queues_seen[group])
        self._queues_seen[group] = set(progress)
        return progress

    async def _reset(
        self, group: str, topic: str, timestamp: float | datetime, *, dry_run: bool
    ) -> dict[MessageQueue, int]:
        timestamp_ms = milliseconds_or_end("timestamp", timestamp)
        return await admin_groups.reset(self._mq, group, topic, timestamp_ms, dry_run=dry_run)

    async def _cluster_info(self) -> ClusterInfo:
        info = await admin_cluster.info(self._mq, self._brokers_seen)
        self._brokers_seen = {(broker.name, broker.replica): broker.address for broker in info.brokers}
        return info
