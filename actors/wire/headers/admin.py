"""Headers of a broker's administration: topics, groups, offsets, clients, figures. One without fields has no header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, Long, named


@dataclass(frozen=True, slots=True)
class UpdateAndCreateTopic(Header):
    """Create or change a topic. `exclusive` is ours: one that exists with other settings is left alone."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_TOPIC
    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: str = ""
    default_topic: str | None = None
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopicInBroker(Header):
    """Delete a topic with its messages."""

    CODE: ClassVar = RequestCode.DELETE_TOPIC_IN_BROKER
    topic: str


@dataclass(frozen=True, slots=True)
class GetTopicConfig(Header):
    """A topic's settings."""

    CODE: ClassVar = RequestCode.GET_TOPIC_CONFIG
    topic: str


@dataclass(frozen=True, slots=True)
class GetTopicStats(Header):
    """Offsets of a topic's queues."""

    CODE: ClassVar = RequestCode.GET_TOPIC_STATS_INFO
    topic: str


@dataclass(frozen=True, slots=True)
class DeleteSubscriptionGroup(Header):
    """Forget a group, and its offsets if asked."""

    CODE: ClassVar = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group_name: str
    clean_offset: bool = False


@dataclass(frozen=True, slots=True)
class GetSubscriptionGroupConfig(Header):
    """A group's settings."""

    CODE: ClassVar = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    group: str


@dataclass(frozen=True, slots=True)
class UpdateAndGetGroupForbidden(Header):
    """Without `readable` it only asks."""

    CODE: ClassVar = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    group: str
    topic: str
    readable: bool | None = None


@dataclass(frozen=True, slots=True)
class GetConsumeStats(Header):
    """A group's progress in one topic, or in all without one. `strict` is ours: refuse a group that is not there."""

    CODE: ClassVar = RequestCode.GET_CONSUME_STATS
    consumer_group: str
    topic: str = ""
    strict: bool = named("raymqStrict", default=False)


@dataclass(frozen=True, slots=True)
class GetBrokerConsumeStats(Header):
    """All groups' progress; with `is_order` that of ordered topics only."""

    CODE: ClassVar = RequestCode.GET_BROKER_CONSUME_STATS
    is_order: bool = False


@dataclass(frozen=True, slots=True)
class QueryConsumeTimeSpan(Header):
    """A group's queues of a topic in time."""

    CODE: ClassVar = RequestCode.QUERY_CONSUME_TIME_SPAN
    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class QueryTopicConsumeByWho(Header):
    """The groups of a topic."""

    CODE: ClassVar = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    topic: str


@dataclass(frozen=True, slots=True)
class QueryTopicsByConsumer(Header):
    """The topics of a group."""

    CODE: ClassVar = RequestCode.QUERY_TOPICS_BY_CONSUMER
    group: str


@dataclass(frozen=True, slots=True)
class QuerySubscriptionByConsumer(Header):
    """What a running group wants of a topic."""

    CODE: ClassVar = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class ResetOffset(Header):
    """To `offset` of one queue, or to a time in one or all; a negative time is the end."""

    CODE: ClassVar = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    topic: str
    group: str
    timestamp: Long = -1
    queue_id: int = -1
    offset: Long = -1
    is_force: bool = True


@dataclass(frozen=True, slots=True)
class CloneGroupOffset(Header):
    """Give one group the offsets of another, in one topic or in all."""

    CODE: ClassVar = RequestCode.CLONE_GROUP_OFFSET
    src_group: str
    dest_group: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class GetConsumerConnectionList(Header):
    """The connected members of a consumer group."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_CONNECTION_LIST
    consumer_group: str


@dataclass(frozen=True, slots=True)
class GetProducerConnectionList(Header):
    """The connected members of a producer group."""

    CODE: ClassVar = RequestCode.GET_PRODUCER_CONNECTION_LIST
    producer_group: str


@dataclass(frozen=True, slots=True)
class GetConsumerStatus(Header):
    """What the members of a group say of their offsets; of one of them with `client_addr`, its client id."""

    CODE: ClassVar = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    topic: str
    group: str
    client_addr: str = ""


@dataclass(frozen=True, slots=True)
class GetConsumerStatusFromClient(Header):
    """To a client."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class GetConsumerRunningInfo(Header):
    """To a broker, and from there to the client."""

    CODE: ClassVar = RequestCode.GET_CONSUMER_RUNNING_INFO
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(frozen=True, slots=True)
class ConsumeMessageDirectly(Header):
    """To a broker, and from there, with the record as body, to the client. `msg_id` is an offset message id."""

    CODE: ClassVar = RequestCode.CONSUME_MESSAGE_DIRECTLY
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


@dataclass(frozen=True, slots=True)
class ViewBrokerStats(Header):
    """The figures of one counter, such as TOPIC_PUT_NUMS of "topic" or GROUP_GET_NUMS of "topic@group"."""

    CODE: ClassVar = RequestCode.VIEW_BROKER_STATS_DATA
    stats_name: str
    stats_key: str
