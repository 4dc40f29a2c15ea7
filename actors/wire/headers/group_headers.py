"""Headers of the group family: membership, locks, committed offsets."""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.header import Header, Long, header, wire_field


@header(RequestCode.HEART_BEAT)
class HeartBeat(Header):
    """Fields of a client's heartbeat, whose body has the client and its groups.

    `strict` is ours: refuse a subscription that differs from the group's.
    """

    strict: bool = wire_field("raymqStrict", default=False)


@header(RequestCode.UNREGISTER_CLIENT)
class UnregisterClient(Header):
    """Fields of a client's request to leave its producer group, its consumer group, or both."""

    client_id: str = wire_field("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@header(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
class GetConsumerListByGroup(Header):
    """Fields of the request for a consumer group's members, as this broker knows them.

    Ours: with `owners` the answer also has the queues of each member, with `waits_for` also the missing topics for
    which members wait.
    """

    consumer_group: str
    owners: bool = wire_field("raymqOwners", default=False)
    waits_for: bool = wire_field("raymqWaitsFor", default=False)


@header(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
class NotifyConsumerIdsChanged(Header):
    """Fields of a broker's notice to a client that the members of its group changed."""

    consumer_group: str


@header(RequestCode.QUERY_CONSUMER_OFFSET)
class QueryConsumerOffset(Header):
    """Fields of the request for a group's committed offset in a queue.

    If `set_zero_if_not_found` is false, the answer for a group without an offset says so, also on a new queue.
    """

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool = True


@header(RequestCode.UPDATE_CONSUMER_OFFSET)
class UpdateConsumerOffset(Header):
    """Fields of the request that commits an offset: all messages below it are processed.

    Ours: `forward_only`, a lower offset changes nothing; `overrules_reset`, the commit ends a pending reset; `since`,
    refuse the commit if the group was reset to before that offset, or, if it is negative, has an offset at all;
    `incarnation`, refuse the commit if the topic was recreated since; `epoch`, refuse the commit if the log has lost
    records that were read under that epoch.
    """

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: Long
    forward_only: bool = wire_field("raymqForwardOnly", default=False)
    overrules_reset: bool = wire_field("raymqOverrulesReset", default=False)
    since: Long | None = wire_field("raymqSince", default=None)
    incarnation: Long | None = wire_field("raymqIncarnation", default=None)
    epoch: Long | None = wire_field("raymqEpoch", default=None)
