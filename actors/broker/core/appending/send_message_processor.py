"""Turn a message of a RocketMQ client into a record: validation, properties and redirection.

A refused message changes nothing and creates no topic, unless the store itself refuses it. Source of the rules:
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
from raymq.actors.broker.core.appending.batch_records import encode_batch_steps
from raymq.actors.broker.core.appending.inbound_message import (
    TIMER_NAMES,
    InboundMessage,
    MessageKind,
    PutMessageHook,
    kind_of,
)
from raymq.actors.broker.core.copies.record_copy import RecordAppender
from raymq.actors.broker.core.redelivery.redelivery import Redelivery
from raymq.actors.broker.core.redelivery.retry import clamp_reconsume_times
from raymq.actors.errors import (
    InvalidInput,
    MessageIllegal,
    PermissionDenied,
    topic_not_found,
)
from raymq.actors.naming import RETRY_PREFIX, UNSENDABLE_TOPICS, check_topic
from raymq.actors.protocol import PERM_INHERIT, PERM_WRITE
from raymq.storage.config import split_host
from raymq.storage.cooperative_steps import Steps, map_steps
from raymq.storage.records import property_names as names
from raymq.storage.records import record as layout
from raymq.storage.records.message_limits import TOO_LONG
from raymq.storage.records.record import decode_properties, encode, encode_properties
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig

#: The filter type of a topic whose messages may have several tags, and its bit in the sys flag.
_MULTI_TAG = "MULTI_TAG"
_SYS_FLAG_MULTI_TAGS = 0x2
_HAS_UNIQUE_KEY = re.compile(rf"(?:\A|\x02){names.UNIQ_KEY}\x01[^\x02]".encode())
#: Encoded names of properties with which a batch's message cannot be stored unchanged.
_WATCHED = (
    *(f"{name}\x01".encode() for name in (names.DELAY, *TIMER_NAMES, names.TRAN_MSG, *sorted(names.OF_BROKERS))),
    names.OWN_PREFIX.encode(),
)


@dataclass(frozen=True, slots=True)
class PutMessageResult:
    """The position of a message, or of the first one of a batch.

    `message_id` has the ids of all messages, joined by commas. `topic` and `queue_id` are those that it was sent to;
    `queue_offset` is its offset in the queue where it waits.
    """

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    unique_key: str
    messages: int
    size: int
    recall_handle: str | None = None


class SendMessageProcessor:
    """Accepts messages on one broker.

    `put_message_hooks` redirect messages that are not delivered at once, by their kind.

    Attributes:
        choose: returns a number below its argument: the queue of a message that may go to any.
    """

    def __init__(
        self,
        cluster: str,
        store: Store,
        redelivery: Redelivery,
        append: RecordAppender,
        put_message_hooks: Mapping[MessageKind, PutMessageHook],
        *,
        auto_create_topics: bool,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._redelivery = redelivery
        self._append = append
        self._auto_create_topics = auto_create_topics
        self.choose: Callable[[int], int] = random.randrange
        self._unique_keys = UniqueKeyGenerator()
        address, port = split_host(store.config.store_host)
        self._id_prefix = layout.pack_host_bytes(address, port).hex().upper()
        self._put_message_hooks = put_message_hooks

    def accept(self, draft: InboundMessage) -> PutMessageResult:
        """Store one message; the draft must not be used again.

        Raises:
            InvalidInput: a name or a queue is invalid. MessageIllegal: the message itself is invalid.
            TopicNotFound, PermissionDenied: the topic does not exist, or may not be written.
            GroupNotFound: a retry of a group that does not exist.
            StoreFull, StoreFailed: the store cannot append now.
        """
        self._check(draft)
        new_topic = self._destination(draft)
        _strip(draft)
        self._give_up(draft)
        properties = draft.properties
        if any("\0" in part for pair in properties.items() for part in pair):
            raise _with_zeros()
        unique_key = properties[names.UNIQ_KEY] = properties.get(names.UNIQ_KEY) or self._unique_keys.one()
        properties[names.CLUSTER] = self._cluster
        topic, queue_id = draft.topic, draft.queue_id
        redirect_delayed = self._put_message_hooks.get(draft.kind)
        if redirect_delayed is not None:
            redirect_delayed(draft)
        try:
            record = encode(
                draft.topic,
                draft.queue_id,
                draft.body,
                encode_properties(properties),
                flag=draft.flag,
                sys_flag=draft.sys_flag,
                born_timestamp_ms=draft.born_timestamp_ms,
                born_host=draft.born_host,
                reconsume_times=draft.reconsume_times,
            )
        except InvalidInput as error:
            raise _illegal(error) from error
        offset, message_id = self._put(draft, record, np.array([len(record)], np.int32), new_topic)
        return PutMessageResult(topic, queue_id, offset, message_id, unique_key, 1, len(record), draft.recall_handle)

    def accept_batch_steps(self, draft: InboundMessage) -> Steps[Callable[[], PutMessageResult]]:
        """Prepare a batch in steps; return a function that stores all or none.

        Each message keeps its own unique key. The properties of the batch are added to each message that does not set
        them itself. Both raise as `accept`.
        """
        self._check(draft)
        if draft.topic.startswith(RETRY_PREFIX):
            raise MessageIllegal("batch", "no messages of a retry topic", draft.topic)
        if draft.kind is not MessageKind.NORMAL:
            raise MessageIllegal("batch", "messages that are delivered at once", draft.kind.value)
        self._destination(draft)
        _strip(draft)
        common = draft.properties
        unique_key = common.pop(names.UNIQ_KEY, "")
        members = yield from batch_body.split_steps(draft.body)
        completed = yield from self._completing(members, common)
        try:
            records, sizes = yield from encode_batch_steps(draft, completed)
        except InvalidInput as error:
            raise _illegal(error) from error
        if len(members) > AT_ONCE:
            yield None

        def store() -> PutMessageResult:
            new_topic = self._destination(draft)  # the topic may have been changed between two steps
            offset, ids = self._put(draft, records, sizes, new_topic)
            return PutMessageResult(draft.topic, draft.queue_id, offset, ids, unique_key, len(sizes), len(records))

        return store

    def _check(self, draft: InboundMessage) -> None:
        """Raise if the draft is invalid, as far as no topic's settings are needed."""
        check_topic(draft.topic)
        if draft.topic in UNSENDABLE_TOPICS:
            raise PermissionDenied(f"topic {draft.topic} is one of the system's own: messages cannot be sent to it")
        limit = self._store.config.max_message_bytes
        if not 0 < len(draft.body) <= limit:
            remedy = TOO_LONG if draft.body else None
            raise MessageIllegal("body", f"1 to {limit} bytes", len(draft.body), remedy=remedy)
        if draft.sys_flag & layout.SYS_FLAG_TRANSACTION_PREPARED and draft.kind is not MessageKind.HALF:
            raise MessageIllegal("sysFlag", "no transaction bits without the transaction property", draft.sys_flag)

    def _destination(self, draft: InboundMessage) -> TopicConfig | None:
        """Validate or choose the draft's queue; return the topic to create, if it is missing."""
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

    def _after_model(self, draft: InboundMessage) -> TopicConfig:
        """Return the settings of a topic that its first message creates."""
        if draft.topic.startswith(RETRY_PREFIX):
            return TopicConfig(draft.topic, 1, 1)
        model = self._store.topic_configs.get(draft.default_topic) if self._auto_create_topics else None
        if model is None or not model.perm & PERM_INHERIT:
            raise topic_not_found(draft.topic)
        if len(self._store.topic_configs) >= self._store.config.max_auto_topics:
            raise topic_not_found(draft.topic, more="the broker has too many topics to create it for the first message")
        if draft.default_queues < 1:
            raise InvalidInput("defaultTopicQueueNums", "at least 1", draft.default_queues)
        queues = min(draft.default_queues, model.write_queues)
        return TopicConfig(draft.topic, queues, queues, model.perm & ~PERM_INHERIT)

    def _give_up(self, draft: InboundMessage) -> None:
        """Redirect a retry beyond the maximum to the dead letters."""
        if not draft.topic.startswith(RETRY_PREFIX):
            return
        group = draft.topic.removeprefix(RETRY_PREFIX)
        dead = self._redelivery.dlq_for_resent(group, draft.reconsume_times, draft.max_reconsume_times)
        if dead is not None:
            draft.topic, draft.properties[names.DLQ_REASON] = dead
            draft.queue_id = 0
            draft.properties[names.DELAY] = "0"

    def _completing(self, members: Sequence[BatchMember], common: Mapping[str, str]) -> Steps[list[BatchMember]]:
        """Return the messages of a batch with all properties that are stored, in steps."""
        properties = b"".join([member.properties for member in members])
        before, after = encode_properties(common), encode_properties({names.CLUSTER: self._cluster})
        if b"\0" in properties or b"\0" in before:
            raise _with_zeros()
        if any(mark in properties for mark in _WATCHED):
            members = yield from map_steps(_checked, members, AT_ONCE)

        def completed(member: BatchMember) -> BatchMember:
            return BatchMember(member.flag, member.body, before + self._keyed(member.properties) + after)

        completed_members = yield from map_steps(completed, members, AT_ONCE)
        return completed_members

    def _keyed(self, properties: bytes) -> bytes:
        """Return properties that end with a separator and have a unique key."""
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        if _HAS_UNIQUE_KEY.search(properties):
            return properties
        return properties + encode_properties({names.UNIQ_KEY: self._unique_keys.one()})

    def _put(
        self, draft: InboundMessage, records: bytes, sizes: npt.NDArray[np.int32], new_topic: TopicConfig | None
    ) -> tuple[int, str]:
        """Store records of the draft's queue; return the first queue offset and all ids."""
        if new_topic is not None:
            self._store.topic_configs.put_soon(new_topic)
        try:
            result = self._append(records, sizes, (draft.topic, draft.queue_id), check_crc=False)
        except InvalidInput as error:
            raise _illegal(error) from error
        ids = [f"{self._id_prefix}{offset:016X}" for offset in result.physical_offsets.tolist()]
        return int(result.queue_offsets[0]), ",".join(ids)


def _strip(draft: InboundMessage) -> None:
    """Remove reserved properties, and clamp the reconsume times."""
    draft.properties = _unreserved(draft.properties)
    draft.reconsume_times = clamp_reconsume_times(draft.reconsume_times)


def _unreserved(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if not names.is_reserved(name)}


def _checked(member: BatchMember) -> BatchMember:
    """Return a batch's message without reserved properties.

    Raise MessageIllegal unless the message is delivered at once.
    """
    properties = _unreserved(decode_properties(member.properties))
    kind = kind_of(properties, reconsume_times=0)
    if kind is not MessageKind.NORMAL:
        raise MessageIllegal("batch", "messages that are delivered at once", kind.value)
    return BatchMember(member.flag, member.body, encode_properties(properties))


def _with_zeros() -> MessageIllegal:
    return MessageIllegal("properties", "without \\x00, which RayMQ's own producers refuse, too", "some")


def _illegal(error: InvalidInput) -> MessageIllegal:
    return MessageIllegal(error.field, error.limit, error.actual, remedy=error.remedy or None)
