"""Administrate topics, groups, messages, dead letters and the cluster.

Each call has a twin for asyncio code, whose name begins with `a` and which may be awaited on any event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from raymq.actors.errors import ClientClosed
from raymq.actors.naming import MAX_QUEUES
from raymq.actors.protocol import MessageQueue, TransactionOutcome
from raymq.client import arguments
from raymq.client.admin import broker_removal as admin_brokers
from raymq.client.admin import cluster_info as admin_cluster
from raymq.client.admin import dead_letter_requests, election_requests, topic_reader, transaction_requests
from raymq.client.admin import group_requests as admin_groups
from raymq.client.admin import message_search as admin_messages
from raymq.client.admin import topic_requests as admin_topics
from raymq.client.admin.dead_letter_requests import DeadMessage, RedriveResult
from raymq.client.admin.inspection import Inspection
from raymq.client.admin.operation import Operation
from raymq.client.admin.topic_reader import ReadPosition
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
    OpenTransaction,
    QueueStats,
    TopicConfig,
)
from raymq.client.timestamps import milliseconds_or_end

if TYPE_CHECKING:
    import pyarrow as pa


class Admin(Inspection):
    """A client that inspects and changes a cluster.

    Thread-safe; a context manager. A call that reaches no broker raises BrokerUnavailable.

    If a broker did not make a change, the call raises an error. It may be repeated: the brokers that made the change
    keep it.
    """

    KIND = "admin client"

    def __init__(self, mq: Connection) -> None:
        check_connection(mq)
        super().__init__(mq)
        #: The brokers and queues of the previous call, so that those of an unreachable broker are reported as unknown.
        self._brokers_seen: dict[tuple[str, int], str] = {}
        self._queues_seen: dict[str, set[MessageQueue]] = defaultdict(set)
        mq.adopt(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Admin, (self._mq,)

    # -- topics --------------------------------------------------------------------------------------------------

    def create_topic(
        self, topic: str, queues: int = 4, ordered: bool = False, *, message_type: str | None = None
    ) -> None:
        """Create a topic of `queues` queues on every broker.

        A repeated call with the same settings changes nothing.

        Args:
            message_type: "NORMAL", "FIFO", "DELAY" or "TRANSACTION": the topic accepts only messages of that type from
                RayMQ's clients. "MIXED" or None: messages of every type. RocketMQ's proxy treats None as NORMAL.

        Raises:
            TopicExists: the topic exists with other settings.
        """
        self._run(admin_topics.create(self._mq, topic, queues, ordered=ordered, message_type=message_type))

    async def acreate_topic(
        self, topic: str, queues: int = 4, ordered: bool = False, *, message_type: str | None = None
    ) -> None:
        """`create_topic` for asyncio code."""
        await self._arun(admin_topics.create(self._mq, topic, queues, ordered=ordered, message_type=message_type))

    def topic_config(self, topic: str, *, skip_silent: bool = False) -> TopicConfig:
        """Return the settings of a topic, as its first broker has them.

        Args:
            skip_silent: as in `topic_stats`.

        Raises:
            TopicNotFound.
        """
        return self._run(admin_topics.config(self._mq, topic, skip_silent=skip_silent))

    async def atopic_config(self, topic: str, *, skip_silent: bool = False) -> TopicConfig:
        """`topic_config` for asyncio code."""
        return await self._arun(admin_topics.config(self._mq, topic, skip_silent=skip_silent))

    def update_topic(
        self,
        topic: str,
        queues: int | None = None,
        ordered: bool | None = None,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        message_type: str | None = None,
        dry_run: bool = False,
    ) -> None:
        """Change a topic on every broker that has it.

        A setting that is None stays as it is.

        Args:
            queues: the number of queues on each broker, for reading and for writing. Messages in queues beyond it are
                kept, and not delivered.
            read_queues, write_queues: only the number for reading, or only the one for writing. To remove queues, lower
                `write_queues` first, and `read_queues` when the rest is consumed.
            permission: a sum of 4 (read) and 2 (write).
            message_type: as in `create_topic`; "MIXED" removes a restriction.
            dry_run: raise the errors that the change would raise, and change nothing.

        Raises:
            TopicNotFound, InvalidInput.
        """
        self._run(
            self._update_topic(topic, queues, ordered, read_queues, write_queues, permission, message_type, dry_run)
        )

    async def aupdate_topic(
        self,
        topic: str,
        queues: int | None = None,
        ordered: bool | None = None,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        message_type: str | None = None,
        dry_run: bool = False,
    ) -> None:
        """`update_topic` for asyncio code."""
        await self._arun(
            self._update_topic(topic, queues, ordered, read_queues, write_queues, permission, message_type, dry_run)
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on every broker.

        Raises:
            TopicNotFound: no broker has it.
        """
        self._run(admin_topics.delete(self._mq, topic))

    async def adelete_topic(self, topic: str) -> None:
        """`delete_topic` for asyncio code."""
        await self._arun(admin_topics.delete(self._mq, topic))

    def topics(self, system: bool = False) -> list[str]:
        """Return the names of all topics, sorted.

        System topics and the topics of groups (retry and dead-letter topics) are included only if `system` is True.
        """
        return self._run(admin_topics.names(self._mq, system=system))

    async def atopics(self, system: bool = False) -> list[str]:
        """`topics` for asyncio code."""
        return await self._arun(admin_topics.names(self._mq, system=system))

    def topic_stats(self, topic: str, *, skip_silent: bool = False) -> dict[MessageQueue, QueueStats]:
        """Return the offsets and the last store time of each queue of a topic.

        Args:
            skip_silent: leave out brokers that do not answer within 2 s, unless no broker does.

        Raises:
            TopicNotFound: the topic does not exist.
        """
        return self._run(admin_topics.stats(self._mq, topic, skip_silent=skip_silent))

    async def atopic_stats(self, topic: str, *, skip_silent: bool = False) -> dict[MessageQueue, QueueStats]:
        """`topic_stats` for asyncio code."""
        return await self._arun(admin_topics.stats(self._mq, topic, skip_silent=skip_silent))

    # -- groups --------------------------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the names of all consumer groups, sorted."""
        return self._run(admin_groups.names(self._mq))

    async def agroups(self) -> list[str]:
        """Return the same as `groups`, for asyncio code."""
        return await self._arun(admin_groups.names(self._mq))

    def group_list(self) -> list[GroupSummary]:
        """Return all consumer groups with their number of members and their lag, sorted by name."""
        return self._run(admin_groups.summaries(self._mq))

    async def agroup_list(self) -> list[GroupSummary]:
        """`group_list` for asyncio code."""
        return await self._arun(admin_groups.summaries(self._mq))

    def delete_group(self, group: str, dead_letters: bool = False, dry_run: bool = False) -> GroupDeletion:
        """Delete a consumer group.

        Its committed offsets, its in-flight messages of simple consumers and its retry topic with the messages in it
        are deleted. A consumer that starts with this name creates a new group. A broker that is away keeps its part of
        the group until it is back: call this again then.

        Args:
            dead_letters: delete the group's dead letters too; otherwise they stay, and can be listed, exported and
                deleted.
            dry_run: report what would be deleted, and change nothing.

        Raises:
            GroupNotFound: no broker has anything of the group.
            InvalidInput: the group has members, or has committed in the last 60 s (pull consumers and Spark are no
                members).
            BrokerUnavailable: a broker did not answer, or is away; the others may have deleted the group. Call it
                again.
        """
        return self._run(admin_groups.delete(self._mq, group, dead_letters=dead_letters, dry_run=dry_run))

    async def adelete_group(self, group: str, dead_letters: bool = False, dry_run: bool = False) -> GroupDeletion:
        """`delete_group` for asyncio code."""
        return await self._arun(admin_groups.delete(self._mq, group, dead_letters=dead_letters, dry_run=dry_run))

    def forget_topic(self, group: str, topic: str) -> int:
        """Delete a group's offsets in a topic that it no longer consumes.

        Returns:
            The number of queues in which the group had an offset.

        Raises:
            GroupNotFound: no broker has the group.
            InvalidInput: a member of the group subscribes to the topic.
        """
        return self._run(admin_groups.forget_topic(self._mq, group, topic))

    async def aforget_topic(self, group: str, topic: str) -> int:
        """`forget_topic` for asyncio code."""
        return await self._arun(admin_groups.forget_topic(self._mq, group, topic))

    def group_progress(self, group: str) -> GroupProgress:
        """Return the offsets and the lag of a group in each queue.

        The queues of its retry topic are included. A value that is unknown is None, never 0. `missing_topics` of the
        result are the topics that members subscribe to and that do not exist.

        Raises:
            GroupNotFound: no broker has the group.
        """
        return self._run(self._group_progress(group))

    async def agroup_progress(self, group: str) -> GroupProgress:
        """`group_progress` for asyncio code."""
        return await self._arun(self._group_progress(group))

    def reset_offset_by_time(
        self, group: str, topic: str, timestamp: float | datetime, *, dry_run: bool = False
    ) -> dict[MessageQueue, int]:
        """Reset a group's offsets to the first messages of `topic` stored at `timestamp` or later.

        The group may be running or not. A time in the future resets to the end of each queue. A running member
        continues at the new offset with its next fetch. Neither commits nor receipt handles of a simple consumer for
        messages that were delivered before the reset have an effect after it.

        Args:
            timestamp: seconds since 1970, or a datetime with a time zone; `math.inf` is the end.
            dry_run: return the offsets that the reset would set, and change nothing.

        Returns:
            The offset at which the group continues, by queue.

        Raises:
            GroupNotFound, TopicNotFound.
            InvalidInput: `timestamp` is no valid time, or more than 100 years ahead (milliseconds, for example).
        """
        return self._run(self._reset(group, topic, timestamp, dry_run=dry_run))

    async def areset_offset_by_time(
        self, group: str, topic: str, timestamp: float | datetime, *, dry_run: bool = False
    ) -> dict[MessageQueue, int]:
        """`reset_offset_by_time` for asyncio code."""
        return await self._arun(self._reset(group, topic, timestamp, dry_run=dry_run))

    def skip(self, group: str, topic: str, *, dry_run: bool = False) -> dict[MessageQueue, int]:
        """Reset a group's offsets to the end of `topic`: skip all stored messages.

        Otherwise as `reset_offset_by_time`.
        """
        return self._run(self._reset(group, topic, math.inf, dry_run=dry_run))

    async def askip(self, group: str, topic: str, *, dry_run: bool = False) -> dict[MessageQueue, int]:
        """`skip` for asyncio code."""
        return await self._arun(self._reset(group, topic, math.inf, dry_run=dry_run))

    # -- messages ------------------------------------------------------------------------------------------------

    def query_by_id(self, message_id: str) -> ReceivedMessage:
        """Return the message stored at the position that a message id encodes.

        Raises:
            MessageNotFound: no message is stored there.
            MessageExpired: the message has expired.
            BrokerUnavailable: the broker does not answer.
        """
        return self._run(admin_messages.by_id(self._mq, message_id))

    async def aquery_by_id(self, message_id: str) -> ReceivedMessage:
        """`query_by_id` for asyncio code."""
        return await self._arun(admin_messages.by_id(self._mq, message_id))

    def query_by_unique_key(self, topic: str, unique_key: str) -> ReceivedMessage:
        """Return the newest message of `topic` with that unique key.

        Only brokers that are available are searched.

        Raises:
            MessageNotFound: all brokers answered, and none has the message.
            BrokerUnavailable: no available broker has the message, and a broker of the topic is away.
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
        """Return messages of `topic` that carry `key`, newest store time first.

        At most `limit` messages are returned over all brokers.

        Args:
            begin, end: store time, inclusive, in whole seconds: seconds since 1970, or datetimes with a time zone.

        Raises:
            BrokerUnavailable: none was found, and a broker of the topic is away or does not answer. Where some were
                found, `.not_asked` of the result names such brokers, and a warning is logged.

        Returns:
            a list whose `.truncated` says whether there are more; `query_messages` returns all of them.
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
        """Iterate over all messages of `topic` that carry `key`, newest store time first.

        One page of each broker is in memory at a time.

        Args:
            begin, end: as in `query_by_key`.

        Raises:
            TopicNotFound, InvalidInput, and the rest as `query_by_key`: when the first message is read.
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
        start: ReadPosition = "earliest",
        end: ReadPosition = "latest",
        tags: str = "*",
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
    ) -> pa.Table:
        """Return the messages of `topic` from `start` to `end` (exclusive) as an Arrow table.

        No consumer group is created. The range of offsets is fixed at the time of the call. Rows come queue by queue,
        in the queue's order; columns are those of a Spark read, with the queue as `broker` and `queue_id`. The whole
        table is in memory at once. For the dead-letter topic of a group without dead letters, the table has no rows.

        Args:
            start, end: "earliest", "latest", a time (seconds since 1970, or a datetime with a time zone), "group:NAME"
                (the offsets at which the group continues) or {MessageQueue: offset}, which leaves out the queues that
                it does not name.
            tags: "*", "a" or "a || b".
            columns: only these, in this order; without "body" the brokers send no bodies.
            max_rows: read at most this many rows; None: all.

        Raises:
            TopicNotFound, GroupNotFound, QueueNotFound, OffsetOutOfRange, InvalidInput: the topic, group, queue or
                offset that an argument names does not exist, or an argument breaks its rule.
            OffsetOutOfRange: also where messages expire while they are read.
            BrokerUnavailable: a broker of the topic did not come back within 30 s.
            StoreCorrupt: a message is damaged in its broker's file.
        """
        self._check_open()
        return topic_reader.table(self._mq, topic, start, end, tags, columns, max_rows)

    async def aread_table(
        self,
        topic: str,
        start: ReadPosition = "earliest",
        end: ReadPosition = "latest",
        tags: str = "*",
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
    ) -> pa.Table:
        """`read_table` for asyncio code; the read runs on another thread."""
        return await asyncio.to_thread(self.read_table, topic, start, end, tags, columns, max_rows)

    def tail(
        self, topic: str, start: ReadPosition = "latest", tags: str = "*", *, follow: bool = True
    ) -> Generator[ReceivedMessage]:
        """Iterate over the messages of `topic` from `start` on, without a consumer group.

        With `follow` the iterator does not end: it goes on with messages that arrive later. Messages come in the order
        of their queues; damaged messages are skipped.

        Args:
            start: as in `read_table`.
            tags: "*", "a" or "a || b".
            follow: False: stop at the end that the topic has at the time of the call.

        Raises:
            TopicNotFound, InvalidInput, and the rest as `read_table`: when the first message is read.
        """
        found = topic_reader.messages(self._mq, topic, start, tags, follow=follow)
        try:
            while (message := self._run(topic_reader.following(found))) is not None:
                yield message
        finally:
            with contextlib.suppress(ClientClosed):
                self._run(topic_reader.close(found))

    async def atail(
        self, topic: str, start: ReadPosition = "latest", tags: str = "*", *, follow: bool = True
    ) -> AsyncIterator[ReceivedMessage]:
        """`tail` for asyncio code: `async for message in admin.atail(topic)`."""
        found = topic_reader.messages(self._mq, topic, start, tags, follow=follow)
        try:
            while (message := await self._arun(topic_reader.following(found))) is not None:
                yield message
        finally:
            with contextlib.suppress(ClientClosed):
                await self._arun(topic_reader.close(found))

    # -- transactions --------------------------------------------------------------------------------------------

    def transactions(self, topic: str | None = None) -> list[OpenTransaction]:
        """Return the transactions that wait for a decision, oldest first.

        Args:
            topic: only those of this topic.

        Raises:
            BrokerUnavailable: a broker does not answer.
        """
        return self._run(transaction_requests.all_of(self._mq, topic))

    async def atransactions(self, topic: str | None = None) -> list[OpenTransaction]:
        """`transactions` for asyncio code."""
        return await self._arun(transaction_requests.all_of(self._mq, topic))

    def commit_transaction(self, message_id: str, *, dry_run: bool = False) -> None:
        """Commit a transaction in place of its producer: consumers get the message.

        Args:
            message_id: that of the message in `transactions`, or its unique key.
            dry_run: only look for the transaction, and change nothing.

        Raises:
            MessageNotFound: no open or given-up transaction has this message id or unique key.
            TransactionEnded: its producer rolled it back meanwhile.
        """
        self._run(transaction_requests.end(self._mq, message_id, TransactionOutcome.COMMIT, dry_run=dry_run))

    async def acommit_transaction(self, message_id: str, *, dry_run: bool = False) -> None:
        """`commit_transaction` for asyncio code."""
        await self._arun(transaction_requests.end(self._mq, message_id, TransactionOutcome.COMMIT, dry_run=dry_run))

    def rollback_transaction(self, message_id: str, *, dry_run: bool = False) -> None:
        """Roll back an open transaction in place of its producer: the message is dropped.

        Raises:
            MessageNotFound, TransactionEnded: as `commit_transaction`.
        """
        self._run(transaction_requests.end(self._mq, message_id, TransactionOutcome.ROLLBACK, dry_run=dry_run))

    async def arollback_transaction(self, message_id: str, *, dry_run: bool = False) -> None:
        """`rollback_transaction` for asyncio code."""
        await self._arun(transaction_requests.end(self._mq, message_id, TransactionOutcome.ROLLBACK, dry_run=dry_run))

    def resume_transaction(self, message_id: str, *, dry_run: bool = False) -> str:
        """Let the producers of a transaction be asked from the beginning.

        Returns:
            The message id of the transaction from now on. One that was given up is open again, with another id.

        Raises:
            MessageNotFound: no open or given-up transaction has this message id or unique key.
            TopicNotFound: the topic of the message was deleted.
        """
        return self._run(transaction_requests.resume(self._mq, message_id, dry_run=dry_run))

    async def aresume_transaction(self, message_id: str, *, dry_run: bool = False) -> str:
        """`resume_transaction` for asyncio code."""
        return await self._arun(transaction_requests.resume(self._mq, message_id, dry_run=dry_run))

    # -- dead letters --------------------------------------------------------------------------------------------

    def dlq_list(self, group: str, limit: int = 1000, *, newest_first: bool = False) -> FoundMessages[DeadMessage]:
        """Return a group's dead letters, the oldest first, at most `limit` over all brokers.

        They are ordered by the time at which they entered the dead-letter queue. Entries that are damaged in a broker's
        files are left out: `.unreadable` of the result names them, and they are logged. `.truncated` of the result says
        whether there are more; `dlq_messages` returns all of them.

        Args:
            newest_first: return the newest ones instead, the newest first.

        Raises:
            GroupNotFound: no broker has the group.
            BrokerUnavailable: none was found, and a broker is away. Where some were found, `.not_asked` of the result
                names such brokers, and a warning is logged.
        """
        return self._run(dead_letter_requests.first(self._mq, group, limit, newest_first=newest_first))

    async def adlq_list(
        self, group: str, limit: int = 1000, *, newest_first: bool = False
    ) -> FoundMessages[DeadMessage]:
        """`dlq_list` for asyncio code."""
        return await self._arun(dead_letter_requests.first(self._mq, group, limit, newest_first=newest_first))

    def dlq_messages(self, group: str) -> Iterator[DeadMessage]:
        """Iterate over all dead letters of a group, broker by broker, the oldest first.

        One page is in memory at a time.

        Raises:
            GroupNotFound: no broker has the group; raised by the call, not when the first message is read.
        """
        self._run(admin_groups.check_exists(self._mq, group, dead_letters=True))
        found = dead_letter_requests.read(self._mq, group)

        def messages() -> Iterator[DeadMessage]:
            while (message := self._run(dead_letter_requests.following(found))) is not None:
                yield message

        return messages()

    async def adlq_messages(self, group: str) -> AsyncIterator[DeadMessage]:
        """`dlq_messages` for asyncio code: `async for message in admin.adlq_messages(group)`."""
        await self._arun(admin_groups.check_exists(self._mq, group, dead_letters=True))
        found = dead_letter_requests.read(self._mq, group)
        while (message := await self._arun(dead_letter_requests.following(found))) is not None:
            yield message

    def dlq_delete(self, group: str, ids: Iterable[str] | None = None, *, dry_run: bool = False) -> int:
        """Delete dead letters of a group and return how many were deleted.

        They can no longer be listed or redriven. Their bytes stay in the brokers' logs until these expire, as those of
        any message.

        Args:
            ids: which ones, by the message ids of `dlq_list`; None = all.
            dry_run: delete nothing, and return how many would be deleted.

        Raises:
            GroupNotFound: no broker has the group.
            BrokerUnavailable: a broker did not answer, or one is away and no other one has any of them. Call it again.
        """
        return self._run(dead_letter_requests.delete(self._mq, group, ids, dry_run=dry_run))

    async def adlq_delete(self, group: str, ids: Iterable[str] | None = None, *, dry_run: bool = False) -> int:
        """`dlq_delete` for asyncio code."""
        return await self._arun(dead_letter_requests.delete(self._mq, group, ids, dry_run=dry_run))

    def dlq_redrive(
        self,
        group: str,
        ids: Iterable[str] | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        *,
        force: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> RedriveResult:
        """Redrive dead letters: deliver them once more to their group, and to no other group.

        Their count of retries starts again at 0.

        Args:
            ids: which ones, by the message ids of `dlq_list`; None = all.
            rate: the maximum number of messages per second; None: no limit.
            dry_run: report what would be redriven, and change nothing.
            force: redrive also those that were redriven before.
            progress: called with how many were handled, of how many; on the connection's thread, so it must not block.

        Raises:
            GroupNotFound: no broker has the group.
            BrokerUnavailable: a broker did not answer, or one is away and no other one has any of them. When the call
                is repeated, `already` of the result lists what was redriven before.
        """
        return self._run(
            dead_letter_requests.redrive(self._mq, group, ids, rate, dry_run=dry_run, force=force, progress=progress)
        )

    async def adlq_redrive(
        self,
        group: str,
        ids: Iterable[str] | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        *,
        force: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> RedriveResult:
        """`dlq_redrive` for asyncio code."""
        return await self._arun(
            dead_letter_requests.redrive(self._mq, group, ids, rate, dry_run=dry_run, force=force, progress=progress)
        )

    # -- the cluster ---------------------------------------------------------------------------------------------

    def cluster_info(self) -> ClusterInfo:
        """Return the current state of the brokers, name servers, keepers and scheduler.

        A server that does not answer is reported as "unreachable".
        """
        return self._run(self._cluster_info())

    async def acluster_info(self) -> ClusterInfo:
        """`cluster_info` for asyncio code."""
        return await self._arun(self._cluster_info())

    def elect(
        self, broker: str, replica: int | None = None, unclean: bool = False, *, dry_run: bool = False
    ) -> Operation[Election]:
        """Elect a master for a broker group, or make `replica` its master.

        A replica becomes master only if it has everything that was acknowledged. A serving master hands over to it, and
        producers continue within a second or two. If `replica` is None and a master serves, nothing changes.

        Args:
            replica: counted from 0, as in `cluster_info()`.
            unclean: if no in-sync replica is available, elect a replica that may lack acknowledged messages.
            dry_run: report the current state of the broker group, and change nothing.

        Returns:
            the operation; its `wait` raises ElectionFailed, BrokerGroupNotFound or BrokerUnavailable.

        Raises:
            InvalidInput: an argument breaks its rule.
        """
        name, number = election_requests.checked(broker, replica)
        doing = election_requests.elect(self._mq, name, number, unclean=unclean, dry_run=dry_run)
        return Operation(f"election of a master of {name}", self._mq.submit(doing), election_requests.in_words)

    async def aelect(
        self, broker: str, replica: int | None = None, unclean: bool = False, *, dry_run: bool = False
    ) -> Election:
        """`elect` for asyncio code; it returns when the election is done."""
        name, number = election_requests.checked(broker, replica)
        return await self._arun(election_requests.elect(self._mq, name, number, unclean=unclean, dry_run=dry_run))

    def forget_broker(self, broker: str, dry_run: bool = False) -> None:
        """Declare that an unavailable broker is permanently gone.

        New sinks and streams then no longer wait for it, and `cluster_info` does not list it. The state that only this
        broker had is lost: for a series of writes or a stream whose coordinator it was, no other broker can report what
        was committed. The broker must not be started again with its directory. All other brokers have to be available.
        With `dry_run` only the name is checked.

        Raises:
            InvalidInput: the broker is available, or there was none with this name.
            BrokerUnavailable: a broker or name server does not answer; call it again.
        """
        self._run(admin_brokers.forget_lost(self._mq, broker, dry_run=dry_run))

    async def aforget_broker(self, broker: str, dry_run: bool = False) -> None:
        """`forget_broker` for asyncio code."""
        await self._arun(admin_brokers.forget_lost(self._mq, broker, dry_run=dry_run))

    # -- on the connection's loop --------------------------------------------------------------------------------

    async def _update_topic(
        self,
        topic: str,
        queues: int | None,
        ordered: bool | None,
        read_queues: int | None,
        write_queues: int | None,
        permission: int | None,
        message_type: str | None,
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
            message_type=message_type,
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
