"""Headers of a broker's administration: topics, groups, offsets, clients, statistics.

A command without fields has no header.
"""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.header import Header, Long, header, wire_field


@header(RequestCode.UPDATE_AND_CREATE_TOPIC)
class UpdateAndCreateTopic(Header):
    """Fields of the request that creates or changes a topic.

    `exclusive` is ours: a topic that exists with other settings is not changed.
    """

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
    """Fields of the request that deletes a topic with its messages."""

    topic: str


@header(RequestCode.GET_TOPIC_CONFIG)
class GetTopicConfig(Header):
    """Fields of the request for a topic's settings."""

    topic: str


@header(RequestCode.GET_TOPIC_STATS_INFO)
class GetTopicStats(Header):
    """Fields of the request for the offsets of a topic's queues."""

    topic: str


@header(RequestCode.DELETE_SUBSCRIPTIONGROUP)
class DeleteSubscriptionGroup(Header):
    """Fields of the request that deletes a group, with `clean_offset` also its offsets."""

    group_name: str
    clean_offset: bool = False


@header(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
class GetSubscriptionGroupConfig(Header):
    """Fields of the request for a group's settings."""

    group: str


@header(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
class UpdateAndGetGroupForbidden(Header):
    """Fields of the request that sets or returns whether a group may read a topic.

    Without `readable` it only returns the setting.
    """

    group: str
    topic: str
    readable: bool | None = None


@header(RequestCode.GET_CONSUME_STATS)
class GetConsumeStats(Header):
    """Fields of the request for a group's progress in one topic or in all.

    Without `topic` it is the progress in all topics. `strict` is ours: an unknown group is an error.
    """

    consumer_group: str
    topic: str = ""
    strict: bool = wire_field("raymqStrict", default=False)


@header(RequestCode.GET_BROKER_CONSUME_STATS)
class GetBrokerConsumeStats(Header):
    """Fields of the request for all groups' progress; with `is_order` in ordered topics only."""

    is_order: bool = False


@header(RequestCode.QUERY_CONSUME_TIME_SPAN)
class QueryConsumeTimeSpan(Header):
    """Fields of the request for the time spans of a topic's queues for a group."""

    topic: str
    group: str


@header(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
class QueryTopicConsumeByWho(Header):
    """Fields of the request for the groups that consume a topic."""

    topic: str


@header(RequestCode.QUERY_TOPICS_BY_CONSUMER)
class QueryTopicsByConsumer(Header):
    """Fields of the request for the topics that a group consumes."""

    group: str


@header(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
class QuerySubscriptionByConsumer(Header):
    """Fields of the request for the subscription of a running group to a topic."""

    group: str
    topic: str


@header(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
class ResetOffset(Header):
    """Fields of the request that resets a group's offsets in a topic.

    The target is `offset` of one queue, or a time in one queue or all queues; a negative time means the end.
    """

    topic: str
    group: str
    timestamp: Long = -1
    queue_id: int = -1
    offset: Long = -1
    is_force: bool = True


@header(RequestCode.CLONE_GROUP_OFFSET)
class CloneGroupOffset(Header):
    """Fields of the request that copies offsets from one group to another.

    It copies those of one topic, or of all topics without one.
    """

    src_group: str
    dest_group: str
    topic: str = ""


@header(RequestCode.GET_CONSUMER_CONNECTION_LIST)
class GetConsumerConnectionList(Header):
    """Fields of the request for the connected members of a consumer group."""

    consumer_group: str


@header(RequestCode.GET_PRODUCER_CONNECTION_LIST)
class GetProducerConnectionList(Header):
    """Fields of the request for the connected members of a producer group."""

    producer_group: str


@header(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
class GetConsumerStatus(Header):
    """Fields of the request for the offsets that the members of a group report.

    With `client_addr`, a client id, it returns those of one member.
    """

    topic: str
    group: str
    client_addr: str = ""


@header(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
class GetConsumerStatusFromClient(Header):
    """Fields of a broker's request to a client for the client's offsets."""

    topic: str
    group: str


@header(RequestCode.GET_CONSUMER_RUNNING_INFO)
class GetConsumerRunningInfo(Header):
    """Fields of a request to a broker, which forwards it to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@header(RequestCode.CONSUME_MESSAGE_DIRECTLY)
class ConsumeMessageDirectly(Header):
    """Fields of a request to a broker, which forwards it to the client.

    The broker forwards it with the record as body. `msg_id` is an offset message id.
    """

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


@header(RequestCode.VIEW_BROKER_STATS_DATA)
class ViewBrokerStats(Header):
    """Fields of the request for the values of one counter.

    Examples are TOPIC_PUT_NUMS of "topic" and GROUP_GET_NUMS of "topic@group".
    """

    stats_name: str
    stats_key: str
