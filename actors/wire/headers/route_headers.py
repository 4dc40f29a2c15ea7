"""Headers of the requests that a name server serves.

A command without fields has no header.
"""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.header import Header, Long, header


@header(RequestCode.REGISTER_BROKER)
class RegisterBroker(Header):
    """Fields of a broker's registration with all its topics.

    With `raymq_since` (a DataVersion) the body has only the topics that changed after that version. `broker_id` is 0
    for a group's master, else the replica's number. `raymq_max_message_bytes` is the longest message body that the
    broker accepts.
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
    """Fields of the notice of a broker that stops."""

    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_addr: str


@header(RequestCode.QUERY_DATA_VERSION)
class QueryDataVersion(Header):
    """Fields of a broker's heartbeat, whose body is the version of its topics.

    If the answer's `changed` is true, the broker has to register again.
    """

    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_addr: str


@header(RequestCode.GET_ROUTEINFO_BY_TOPIC)
class GetRouteInfo(Header):
    """Fields of the request for a topic's route.

    With `raymq_limits` the answer also has the longest message body that each broker accepts, with `raymq_away` also
    the queues on brokers that have left the routes.
    """

    topic: str
    accept_standard_json_only: bool = False
    raymq_limits: bool = False
    raymq_away: bool = False


@header(RequestCode.GET_BROKER_CLUSTER_INFO)
class GetClusterInfo(Header):
    """Fields of the request for all brokers.

    With `raymq_away` the answer also has the brokers that have left the routes lately.
    """

    raymq_away: bool = False


@header(RequestCode.GET_BROKER_MEMBER_GROUP)
class GetBrokerMemberGroup(Header):
    """Fields of the request for the replicas of a broker group, by their ids."""

    cluster_name: str
    broker_name: str


@header(RequestCode.GET_TOPICS_BY_CLUSTER)
class GetTopicsByCluster(Header):
    """Fields of the request for the topics of one cluster."""

    cluster: str


@header(RequestCode.DELETE_TOPIC_IN_NAMESRV)
class DeleteTopicInNameServer(Header):
    """Fields of the request that deletes a topic's route, in one cluster or in all."""

    topic: str
    cluster_name: str | None = None


@header(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
class WipeWritePermission(Header):
    """Fields of the request that removes a broker from the routes offered to producers."""

    broker_name: str


@header(RequestCode.ADD_WRITE_PERM_OF_BROKER)
class AddWritePermission(Header):
    """Fields of the reverse of WipeWritePermission."""

    broker_name: str


@header(RequestCode.PUT_KV_CONFIG)
class PutKeyValue(Header):
    """Fields of the request that creates or replaces a configuration entry."""

    namespace: str
    key: str
    value: str


@header(RequestCode.GET_KV_CONFIG)
class GetKeyValue(Header):
    """Fields of the request for a configuration entry."""

    namespace: str
    key: str


@header(RequestCode.DELETE_KV_CONFIG)
class DeleteKeyValue(Header):
    """Fields of the request that removes a configuration entry."""

    namespace: str
    key: str


@header(RequestCode.GET_KVLIST_BY_NAMESPACE)
class GetKeyValues(Header):
    """Fields of the request for all entries of a namespace."""

    namespace: str
