"""Headers of what a name server serves; a command without fields has none."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, Long


@dataclass(frozen=True, slots=True)
class RegisterBroker(Header):
    """All topics of a broker; with `raymq_since` (a DataVersion) only what changed after it.

    `raymq_max_message_bytes` is the longest body that the broker takes.
    """

    CODE = RequestCode.REGISTER_BROKER
    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_addr: str
    ha_server_addr: str = ""
    compressed: bool = False
    raymq_since: str | None = None
    raymq_max_message_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class UnregisterBroker(Header):
    """A broker stops."""

    CODE = RequestCode.UNREGISTER_BROKER
    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_addr: str


@dataclass(frozen=True, slots=True)
class QueryDataVersion(Header):
    """A broker's heartbeat; the body is the version of its topics, the answer's `changed` says "register"."""

    CODE = RequestCode.QUERY_DATA_VERSION
    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_addr: str


@dataclass(frozen=True, slots=True)
class GetRouteInfo(Header):
    """Where a topic lives; with `raymq_limits` also the longest body that each of its brokers takes."""

    CODE = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str
    accept_standard_json_only: bool = False
    raymq_limits: bool = False


@dataclass(frozen=True, slots=True)
class GetTopicsByCluster(Header):
    """The topics of one cluster."""

    CODE = RequestCode.GET_TOPICS_BY_CLUSTER
    cluster: str


@dataclass(frozen=True, slots=True)
class DeleteTopicInNameServer(Header):
    """Forget a topic's route, in one cluster or everywhere."""

    CODE = RequestCode.DELETE_TOPIC_IN_NAMESRV
    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True)
class WipeWritePermission(Header):
    """Take a broker out of what producers are offered."""

    CODE = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    broker_name: str


@dataclass(frozen=True, slots=True)
class AddWritePermission(Header):
    """The reverse of WipeWritePermission."""

    CODE = RequestCode.ADD_WRITE_PERM_OF_BROKER
    broker_name: str


@dataclass(frozen=True, slots=True)
class PutKeyValue(Header):
    """Create or replace a configuration entry."""

    CODE = RequestCode.PUT_KV_CONFIG
    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class GetKeyValue(Header):
    """A configuration entry."""

    CODE = RequestCode.GET_KV_CONFIG
    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class DeleteKeyValue(Header):
    """Remove a configuration entry."""

    CODE = RequestCode.DELETE_KV_CONFIG
    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class GetKeyValues(Header):
    """All entries of a namespace."""

    CODE = RequestCode.GET_KVLIST_BY_NAMESPACE
    namespace: str
