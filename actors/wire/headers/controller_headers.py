"""Headers of the requests that RocketMQ's tools send to a controller.

`ControllerFacade` of a name server answers them.
"""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.header import Header, Long, header


@header(RequestCode.CONTROLLER_ELECT_MASTER)
class ElectMaster(Header):
    """Fields of the request that elects a group's master.

    With `designate_elect` the new master is the replica `broker_id`, by its number in the register. `raymq_unclean`:
    accept the loss of records that only replicas have which do not answer.
    """

    broker_name: str
    cluster_name: str = ""
    broker_id: Long = -1
    designate_elect: bool = False
    raymq_unclean: bool = False


@header(RequestCode.CONTROLLER_GET_REPLICA_INFO)
class GetReplicaInfo(Header):
    """Fields of the request for a group's master and its in-sync replicas."""

    broker_name: str


@header(RequestCode.CLEAN_BROKER_DATA)
class CleanBrokerData(Header):
    """Fields of the request that removes replicas that are gone for good.

    `broker_controller_ids_to_clean` has their numbers, joined by ";".
    """

    broker_name: str
    cluster_name: str = ""
    broker_controller_ids_to_clean: str = ""
    is_clean_living_broker: bool = False
