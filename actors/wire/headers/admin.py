"""Headers of a broker's administration: topics, groups, offsets, clients, figures. One without fields has no header."""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, Long, header, named


@header(RequestCode.UPDATE_AND_CREATE_TOPIC)
class UpdateAndCreateTopic(Header):
    """Create or change a topic. `exclusive` is ours: one that exists with other settings is left alone."""

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


@header(RequestCode.DELETE_TOPIC_IN_BROKER)
class DeleteTopicInBroker(Header):
    """Delete a topic with its messages."""

    topic: str


@header(RequestCode.GET_TOPIC_CONFIG)
class GetTopicConfig(Header):
    """A topic's settings."""

    topic: str


@header(RequestCode.GET_TOPIC_STATS_INFO)
class GetTopicStats(Header):
    """Offsets of a topic's queues."""

    topic: str


@header(RequestCode.DELETE_SUBSCRIPTIONGROUP)
class DeleteSubscriptionGroup(Header):
    """Forget a group, and its offsets if asked."""

    group_name: str
    clean_offset: bool = False


@header(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
class GetSubscriptionGroupConfig(Header):
    """A group's settings."""

    group: str


@header(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
class UpdateAndGetGroupForbidden(Header):
    """Without `readable` it only asks."""

    group: str
    topic: str
    readable: bool | None = None


@header(RequestCode.GET_CONSUME_STATS)
class GetConsumeStats(Header):
    """A group's progress in one topic, or in all without one. `strict` is ours: refuse a group that is not there."""

    consumer_group: str
    topic: str = ""
    strict: bool = named("raymqStrict", default=False)


@header(RequestCode.GET_BROKER_CONSUME_STATS)
class GetBrokerConsumeStats(Header):
    """All groups' progress; with `is_order` that of ordered topics only."""

    is_order: bool = False


@header(RequestCode.QUERY_CONSUME_TIME_SPAN)
class QueryConsumeTimeSpan(Header):
    """A group's queues of a topic in time."""

    topic: str
    group: str


@header(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
class QueryTopicConsumeByWho(Header):
    """The groups of a topic."""

    topic: str


@header(RequestCode.QUERY_TOPICS_BY_CONSUMER)
class QueryTopicsByConsumer(Header):
    """The topics of a group."""

    group: str


@header(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
class QuerySubscriptionByConsumer(Header):
    """What a running group wants of a topic."""

    group: str
    topic: str


@header(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
class ResetOffset(Header):
    """To `offset` of one queue, or to a time in one or all; a negative time is the end."""

    topic: str
    group: str
    timestamp: Long = -1
    queue_id: int = -1
    offset: Long = -1
    is_force: bool = True


@header(RequestCode.CLONE_GROUP_OFFSET)
class CloneGroupOffset(Header):
    """Give one group the offsets of another, in one topic or in all."""

    src_group: str
    dest_group: str
    topic: str = ""


@header(RequestCode.GET_CONSUMER_CONNECTION_LIST)
class GetConsumerConnectionList(Header):
    """The connected members of a consumer group."""

    consumer_group: str


@header(RequestCode.GET_PRODUCER_CONNECTION_LIST)
class GetProducerConnectionList(Header):
    """The connected members of a producer group."""

    producer_group: str


@header(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
class GetConsumerStatus(Header):
    """What the members of a group say of their offsets; of one of them with `client_addr`, its client id."""

    topic: str
    group: str
    client_addr: str = ""


@header(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
class GetConsumerStatusFromClient(Header):
    """To a client."""

    topic: str
    group: str


@header(RequestCode.GET_CONSUMER_RUNNING_INFO)
class GetConsumerRunningInfo(Header):
    """To a broker, and from there to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@header(RequestCode.CONSUME_MESSAGE_DIRECTLY)
class ConsumeMessageDirectly(Header):
    """To a broker, and from there, with the record as body, to the client. `msg_id` is an offset message id."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


@header(RequestCode.VIEW_BROKER_STATS_DATA)
class ViewBrokerStats(Header):
    """The figures of one counter, such as TOPIC_PUT_NUMS of "topic" or GROUP_GET_NUMS of "topic@group"."""

    stats_name: str
    stats_key: str
