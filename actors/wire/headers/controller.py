"""Headers of the questions that RocketMQ's tools ask a controller; `RegisterDesk` of a name server answers them."""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, Long, header


@header(RequestCode.CONTROLLER_ELECT_MASTER)
class ElectMaster(Header):
    """Give a group a master; with `designate_elect` the replica `broker_id`, by its number in the register.

    `raymq_unclean`: take the loss of what only replicas have that do not answer.
    """

    broker_name: str
    cluster_name: str = ""
    broker_id: Long = -1
    designate_elect: bool = False
    raymq_unclean: bool = False


@header(RequestCode.CONTROLLER_GET_REPLICA_INFO)
class GetReplicaInfo(Header):
    """Who is a group's master, and which replicas are in sync."""

    broker_name: str


@header(RequestCode.CLEAN_BROKER_DATA)
class CleanBrokerData(Header):
    """Forget replicas that are gone for good: their numbers, joined by ";"."""

    broker_name: str
    cluster_name: str = ""
    broker_controller_ids_to_clean: str = ""
    is_clean_living_broker: bool = False
