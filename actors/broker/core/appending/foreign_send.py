"""A message of a RocketMQ client becomes a record: what is refused, what the broker adds, which way the message goes.

A refused message leaves nothing behind, no topic either, unless it is the store that refuses. Source of the rules:
RocketMQ's SendMessageProcessor, HookUtils and TopicValidator.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending import batch_body
from raymq.actors.broker.core.appending.batch_body import AT_ONCE, BatchMember
from raymq.actors.broker.core.appending.batch_records import encoding
from raymq.actors.broker.core.appending.inbound_message import TIMER_NAMES, Detour, Draft, MessageKind, kind_of
from raymq.actors.broker.core.copies.rewriting import Append
from raymq.actors.broker.core.delay.schedule import Schedule
from raymq.actors.broker.core.redelivery.redelivery import Redelivery
from raymq.actors.broker.core.redelivery.retry import counted
from raymq.actors.errors import (
    InvalidInput,
    MessageIllegal,
    PermissionDenied,
    RayMQError,
    topic_not_found,
)
from raymq.actors.naming import RETRY_PREFIX, UNSENDABLE_TOPICS, check_topic
from raymq.actors.protocol import PERM_INHERIT, PERM_WRITE
from raymq.storage.config import split_host
from raymq.storage.records import property_names as names
from raymq.storage.records import record as layout
from raymq.storage.records.limits import TOO_LONG
from raymq.storage.records.record import decode_properties, encode, encode_properties
from raymq.storage.records.unique_keys import UniqueKeys
from raymq.storage.steps import Steps, finish, mapped
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig

#: A topic whose tags may be several, and the bit of the sys flag that says so.
_MULTI_TAG = "MULTI_TAG"
_SYS_FLAG_MULTI_TAGS = 0x2
_HAS_UNIQUE_KEY = re.compile(rf"(?:\A|\x02){names.UNIQ_KEY}\x01[^\x02]".encode())
#: Properties that a message of a batch cannot just be stored with.
_WATCHED = (
    *(f"{name}\x01".encode() for name in (names.DELAY, *TIMER_NAMES, names.TRAN_MSG, *sorted(names.OF_BROKERS))),
    names.OWN_PREFIX.encode(),
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """Where a message lies, or a batch: its first one. `message_id` has the ids of all, joined by commas.

    `topic` and `queue_id` are those that it was sent to, `queue_offset` is its place where it waits.
    """

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    unique_key: str
    messages: int
    size: int
    recall_handle: str | None = None


class Accepting:
    """Takes messages in on one broker.

    Attributes:
        detours: what is done with messages that do not come at once. A service that keeps them puts its own here.
        choose: gives a number below its argument: the queue of a message that may come to any.
    """

    def __init__(
        self,
        cluster: str,
        store: Store,
        schedule: Schedule,
        redelivery: Redelivery,
        append: Append,
        *,
        auto_create_topics: bool,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._redelivery = redelivery
        self._append = append
        self._auto_create_topics = auto_create_topics
        self.choose: Callable[[int], int] = random.randrange
        self._unique_keys = UniqueKeys()
        address, port = split_host(store.config.store_host)
        self._id_prefix = layout.pack_host_bytes(address, port).hex().upper()
        self.detours: dict[MessageKind, Detour] = {
            MessageKind.LEVEL: schedule.detour,
            MessageKind.TIMER: _refuse_timer,
            MessageKind.HALF: _refuse_half,
        }

    def accept(self, draft: Draft) -> Accepted:
        """Store one message; the draft is used up.

        Raises:
            InvalidInput: a name or a queue that cannot be. MessageIllegal: the message itself cannot be.
            TopicNotFound, PermissionDenied: the topic is not there, or is not to be written.
            GroupNotFound: a retry of a group that is not there.
            StoreFull, StoreFailed: the store takes nothing now.
        """
        self._check(draft)
        new_topic = self._destination(draft)
        _strip(draft)
        self._give_up(draft)
        told = draft.properties
        if any("\0" in part for pair in told.items() for part in pair):
            raise _with_zeros()
        unique_key = told[names.UNIQ_KEY] = told.get(names.UNIQ_KEY) or self._unique_keys.one()
        told[names.CLUSTER] = self._cluster
        topic, queue_id = draft.topic, draft.queue_id
        detour = self.detours.get(draft.kind)
        if detour is not None:
            detour(draft)
        try:
            record = encode(
                draft.topic,
                draft.queue_id,
                draft.body,
                encode_properties(told),
                flag=draft.flag,
                sys_flag=draft.sys_flag,
                born_timestamp_ms=draft.born_timestamp_ms,
                born_host=draft.born_host,
                reconsume_times=draft.reconsume_times,
            )
        except InvalidInput as error:
            raise _illegal(error) from error
        offset, message_id = self._put(draft, record, np.array([len(record)], np.int32), new_topic)
        return Accepted(topic, queue_id, offset, message_id, unique_key, 1, len(record), draft.recall_handle)

    def accept_batch(self, draft: Draft) -> Accepted:
        """Store all messages of a batch, or none. Raises as `accept`.

        Each keeps its own unique key. What the batch says of all of them is added, where a message does not say
        otherwise.
        """
        return finish(self.reading_batch(draft))()

    def reading_batch(self, draft: Draft) -> Steps[Callable[[], Accepted]]:
        """`accept_batch` up to the append, in steps; the result, called, stores the batch. Both raise as `accept`."""
        self._check(draft)
        if draft.topic.startswith(RETRY_PREFIX):
            raise MessageIllegal("batch", "no retries", draft.topic)
        if draft.kind is not MessageKind.NORMAL:
            raise MessageIllegal("batch", "messages that come at once", draft.kind.value)
        self._destination(draft)
        _strip(draft)
        common = draft.properties
        unique_key = common.pop(names.UNIQ_KEY, "")
        members = yield from batch_body.splitting(draft.body)
        completed = yield from self._completing(members, common)
        try:
            records, sizes = yield from encoding(draft, completed)
        except InvalidInput as error:
            raise _illegal(error) from error
        if len(members) > AT_ONCE:
            yield None

        def store() -> Accepted:
            new_topic = self._destination(draft)  # the topic may have been changed between two steps
            offset, ids = self._put(draft, records, sizes, new_topic)
            return Accepted(draft.topic, draft.queue_id, offset, ids, unique_key, len(sizes), len(records))

        return store

    def _check(self, draft: Draft) -> None:
        """What can be said without a look at the topics."""
        check_topic(draft.topic)
        if draft.topic in UNSENDABLE_TOPICS:
            raise PermissionDenied(f"topic {draft.topic} is the system's own, nothing may be sent to it")
        limit = self._store.config.max_message_bytes
        if not 0 < len(draft.body) <= limit:
            remedy = TOO_LONG if draft.body else None
            raise MessageIllegal("body", f"1 to {limit} bytes", len(draft.body), remedy=remedy)
        if draft.sys_flag & layout.SYS_FLAG_TRANSACTION_PREPARED and draft.kind is not MessageKind.HALF:
            raise MessageIllegal("sysFlag", "no transaction's bits without its property", draft.sys_flag)

    def _destination(self, draft: Draft) -> TopicConfig | None:
        """See to it that the draft's queue is one of its topic's; the topic to make, if there is none yet."""
        known = self._store.topic_configs.get(draft.topic)
        config = known or self._after_model(draft)
        if not config.perm & PERM_WRITE or config.write_queues < 1:
            raise PermissionDenied(f"topic {draft.topic} may not be written")
        queues = max(config.read_queues, config.write_queues)
        if draft.queue_id >= queues:
            raise InvalidInput("queueId", f"below {queues}", draft.queue_id)
        if draft.queue_id < 0:
            draft.queue_id = self.choose(config.write_queues)
        if config.others.get("topicFilterType") == _MULTI_TAG:
            draft.sys_flag |= _SYS_FLAG_MULTI_TAGS
        return config if known is None else None

    def _after_model(self, draft: Draft) -> TopicConfig:
        """The settings of a topic that the first message makes."""
        if draft.topic.startswith(RETRY_PREFIX):
            return TopicConfig(draft.topic, 1, 1)
        model = self._store.topic_configs.get(draft.default_topic) if self._auto_create_topics else None
        if model is None or not model.perm & PERM_INHERIT:
            raise topic_not_found(draft.topic)
        if len(self._store.topic_configs) >= self._store.config.max_auto_topics:
            raise topic_not_found(draft.topic, more="there are too many for the first message to make it")
        if draft.default_queues < 1:
            raise InvalidInput("defaultTopicQueueNums", "at least 1", draft.default_queues)
        queues = min(draft.default_queues, model.write_queues)
        return TopicConfig(draft.topic, queues, queues, model.perm & ~PERM_INHERIT)

    def _give_up(self, draft: Draft) -> None:
        """Send a retry that comes once too often to the dead letters instead."""
        if not draft.topic.startswith(RETRY_PREFIX):
            return
        group = draft.topic.removeprefix(RETRY_PREFIX)
        dead = self._redelivery.dead_letters_of_resent(group, draft.reconsume_times, draft.max_reconsume_times)
        if dead is not None:
            draft.topic, draft.properties[names.DLQ_REASON] = dead
            draft.queue_id = 0
            draft.properties[names.DELAY] = "0"

    def _completing(self, members: Sequence[BatchMember], common: Mapping[str, str]) -> Steps[list[BatchMember]]:
        """The messages of a batch with all the properties that they are stored with."""
        told = b"".join([member.properties for member in members])
        before, after = encode_properties(common), encode_properties({names.CLUSTER: self._cluster})
        if b"\0" in told or b"\0" in before:
            raise _with_zeros()
        if any(mark in told for mark in _WATCHED):
            members = yield from mapped(_checked, members, AT_ONCE)

        def completed(member: BatchMember) -> BatchMember:
            return BatchMember(member.flag, member.body, before + self._keyed(member.properties) + after)

        completed_members = yield from mapped(completed, members, AT_ONCE)
        return completed_members

    def _keyed(self, properties: bytes) -> bytes:
        """Properties that end as they must and have a unique key."""
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        if _HAS_UNIQUE_KEY.search(properties):
            return properties
        return properties + encode_properties({names.UNIQ_KEY: self._unique_keys.one()})

    def _put(
        self, draft: Draft, records: bytes, sizes: npt.NDArray[np.int32], new_topic: TopicConfig | None
    ) -> tuple[int, str]:
        """Store records of the draft's queue; the first one's queue offset, and the ids of all."""
        if new_topic is not None:
            self._store.topic_configs.put_soon(new_topic)
        try:
            result = self._append(records, sizes, (draft.topic, draft.queue_id), check_crc=False)
        except InvalidInput as error:
            raise _illegal(error) from error
        ids = [f"{self._id_prefix}{offset:016X}" for offset in result.physical_offsets.tolist()]
        return int(result.queue_offsets[0]), ",".join(ids)


def _strip(draft: Draft) -> None:
    """Take off what a client has no say over, and hear of its retries what can be counted on."""
    draft.properties = _unreserved(draft.properties)
    draft.reconsume_times = counted(draft.reconsume_times)


def _unreserved(told: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in told.items() if not names.is_reserved(name)}


def _checked(member: BatchMember) -> BatchMember:
    """A batch's message without the properties that only brokers may say; it must come at once."""
    told = _unreserved(decode_properties(member.properties))
    kind = kind_of(told, reconsume_times=0)
    if kind is not MessageKind.NORMAL:
        raise MessageIllegal("batch", "messages that come at once", kind.value)
    return BatchMember(member.flag, member.body, encode_properties(told))


def _with_zeros() -> MessageIllegal:
    return MessageIllegal("properties", "without \\x00, which our own producers refuse, too", "some")


def _illegal(error: InvalidInput) -> MessageIllegal:
    return MessageIllegal(error.field, error.limit, error.actual, remedy=error.remedy or None)


def _refuse_timer(_: Draft) -> None:
    raise RayMQError("messages for a chosen time are not supported by this broker")


def _refuse_half(_: Draft) -> None:
    raise PermissionDenied("transactions are not supported by this broker")
