"""Headers of what a name server serves; a command without fields has none."""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, Long, header


@header(RequestCode.REGISTER_BROKER)
class RegisterBroker(Header):
    """All topics of a broker; with `raymq_since` (a DataVersion) only what changed after it.

    `broker_id` is 0 for a group's master, else the replica's number. `raymq_max_message_bytes` is the longest body that
    the broker takes.
    """

    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_addr: str
    ha_server_addr: str = ""
    compressed: bool = False
    raymq_since: str | None = None
    raymq_max_message_bytes: int | None = None


@header(RequestCode.UNREGISTER_BROKER)
class UnregisterBroker(Header):
    """A broker stops."""

    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_addr: str


@header(RequestCode.QUERY_DATA_VERSION)
class QueryDataVersion(Header):
    """A broker's heartbeat; the body is the version of its topics, the answer's `changed` says "register"."""

    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_addr: str


@header(RequestCode.GET_ROUTEINFO_BY_TOPIC)
class GetRouteInfo(Header):
    """Where a topic lives; with `raymq_limits` also the longest body that each of its brokers takes, with `raymq_away`
    what those of its brokers had that have left the routes.
    """

    topic: str
    accept_standard_json_only: bool = False
    raymq_limits: bool = False
    raymq_away: bool = False


@header(RequestCode.GET_BROKER_MEMBER_GROUP)
class GetBrokerMemberGroup(Header):
    """The replicas of a broker group, by their ids."""

    cluster_name: str
    broker_name: str


@header(RequestCode.GET_TOPICS_BY_CLUSTER)
class GetTopicsByCluster(Header):
    """The topics of one cluster."""

    cluster: str


@header(RequestCode.DELETE_TOPIC_IN_NAMESRV)
class DeleteTopicInNameServer(Header):
    """Forget a topic's route, in one cluster or everywhere."""

    topic: str
    cluster_name: str | None = None


@header(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
class WipeWritePermission(Header):
    """Take a broker out of what producers are offered."""

    broker_name: str


@header(RequestCode.ADD_WRITE_PERM_OF_BROKER)
class AddWritePermission(Header):
    """The reverse of WipeWritePermission."""

    broker_name: str


@header(RequestCode.PUT_KV_CONFIG)
class PutKeyValue(Header):
    """Create or replace a configuration entry."""

    namespace: str
    key: str
    value: str


@header(RequestCode.GET_KV_CONFIG)
class GetKeyValue(Header):
    """A configuration entry."""

    namespace: str
    key: str


@header(RequestCode.DELETE_KV_CONFIG)
class DeleteKeyValue(Header):
    """Remove a configuration entry."""

    namespace: str
    key: str


@header(RequestCode.GET_KVLIST_BY_NAMESPACE)
class GetKeyValues(Header):
    """All entries of a namespace."""

    namespace: str
