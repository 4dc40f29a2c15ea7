"""What is asked of the register through a name server, in the form of RocketMQ's controller."""

from __future__ import annotations

import json
from dataclasses import dataclass

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.controller import CleanBrokerData, ElectMaster, GetReplicaInfo
from raymq.actors.wire.told import number, reader, told_in


@dataclass(frozen=True, slots=True)
class GroupMaster:
    """A group by the register. Numbers of replicas are the register's, from 1 on; `master` None: nobody.

    `warning` is an election's: what may be lost by it. `changed`: whether it brought about anything.
    """

    master: int | None
    epoch: int
    in_sync: tuple[int, ...]
    warning: str = ""
    changed: bool = False


def elect_command(broker: str, replica: int | None, *, unclean: bool) -> Command:
    """CONTROLLER_ELECT_MASTER: give a group a master, the replica of that number if one is named."""
    return ElectMaster(
        broker, broker_id=-1 if replica is None else replica, designate_elect=replica is not None, raymq_unclean=unclean
    ).command()


def replica_info_command(broker: str) -> Command:
    """CONTROLLER_GET_REPLICA_INFO: how a group stands."""
    return GetReplicaInfo(broker).command()


def clean_command(broker: str, replica: int) -> Command:
    """CLEAN_BROKER_DATA: forget the replica of that number, which is neither in sync nor alive."""
    return CleanBrokerData(broker, broker_controller_ids_to_clean=str(replica)).command()


def sync_state_command(broker: str) -> Command:
    """CONTROLLER_GET_SYNC_STATE_DATA: which replicas a group has."""
    return Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=json.dumps([broker]).encode())


@reader
def read_replicas(answer: Command, broker: str) -> dict[int, bool]:
    """The answer: by its number, whether a replica is in sync. Empty where the register knows no such group."""
    table = told_in(answer)["replicasInfoTable"]
    group = table.get(broker) or {"inSyncReplicas": [], "notInSyncReplicas": []}
    found: dict[int, bool] = {}
    for is_in_sync, key in ((True, "inSyncReplicas"), (False, "notInSyncReplicas")):
        found |= {number(each["brokerId"], 1): is_in_sync for each in group[key]}
    return found


@reader
def read_group_master(answer: Command) -> GroupMaster:
    """The answer to either; ProtocolError."""
    fields = answer.fields
    told = told_in(answer)
    master = number(fields["masterBrokerId"], -1) if fields.get("masterBrokerId") is not None else -1
    return GroupMaster(
        master if master > 0 else None,
        number(fields["masterEpoch"]),
        tuple(number(each, 1) for each in told["syncStateSet"]),
        str(fields.get("raymqWarning") or "")[:1000],
        changed=fields.get("raymqChanged") == "true",
    )
