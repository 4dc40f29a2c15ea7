"""Headers of the group family: membership, locks, committed offsets."""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, Long, header, named


@header(RequestCode.HEART_BEAT)
class HeartBeat(Header):
    """The body says who; `strict` is ours: refuse a subscription that differs from the group's."""

    strict: bool = named("raymqStrict", default=False)


@header(RequestCode.UNREGISTER_CLIENT)
class UnregisterClient(Header):
    """A client leaves its producer group, its consumer group, or both."""

    client_id: str = named("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@header(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
class GetConsumerListByGroup(Header):
    """The members of a consumer group, as the broker that is asked knows them.

    Ours: `owners`, and their queues; `waits_for`, and the topics that they wait for.
    """

    consumer_group: str
    owners: bool = named("raymqOwners", default=False)
    waits_for: bool = named("raymqWaitsFor", default=False)


@header(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
class NotifyConsumerIdsChanged(Header):
    """To a client: the members of its group changed."""

    consumer_group: str


@header(RequestCode.QUERY_CONSUMER_OFFSET)
class QueryConsumerOffset(Header):
    """`set_zero_if_not_found` false: a group without an offset is told so, also on a young queue."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool = True


@header(RequestCode.UPDATE_CONSUMER_OFFSET)
class UpdateConsumerOffset(Header):
    """Everything below `commit_offset` is done.

    Ours: `forward_only`, a lower offset changes nothing; `overrules_reset`, a waiting reset is over; `since`, refuse it
    if the group was sent back before that offset, or, where it is negative, has one at all; `incarnation`, refuse it if
    the topic was made anew since; `epoch`, refuse it if the log has lost what was read under that.
    """

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: Long
    forward_only: bool = named("raymqForwardOnly", default=False)
    overrules_reset: bool = named("raymqOverrulesReset", default=False)
    since: Long | None = named("raymqSince", default=None)
    incarnation: Long | None = named("raymqIncarnation", default=None)
    epoch: Long | None = named("raymqEpoch", default=None)
