"""Requests to the register through a name server, in the form of RocketMQ's controller."""

from __future__ import annotations

import json
from dataclasses import dataclass

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.controller_headers import CleanBrokerData, ElectMaster, GetReplicaInfo
from raymq.actors.wire.response_validation import number, protocol_checked, read_json_answer


@dataclass(frozen=True, slots=True)
class GroupMaster:
    """A broker group's state in the register.

    Replicas have the register's numbers, from 1 on; `master` is None if there is none. `warning` of an election is what
    may be lost by it. `changed` is whether the request changed anything.
    """

    master: int | None
    epoch: int
    in_sync: tuple[int, ...]
    warning: str = ""
    changed: bool = False


def elect_command(broker: str, replica: int | None, *, unclean: bool) -> Command:
    """Return CONTROLLER_ELECT_MASTER: elect a group's master, the replica `replica` if given."""
    return ElectMaster(
        broker, broker_id=-1 if replica is None else replica, designate_elect=replica is not None, raymq_unclean=unclean
    ).command()


def replica_info_command(broker: str) -> Command:
    """Return CONTROLLER_GET_REPLICA_INFO: request the state of a group."""
    return GetReplicaInfo(broker).command()


def clean_replica_command(broker: str, replica: int) -> Command:
    """Return CLEAN_BROKER_DATA: remove a replica that is neither in sync nor running."""
    return CleanBrokerData(broker, broker_controller_ids_to_clean=str(replica)).command()


def sync_state_command(broker: str) -> Command:
    """Return CONTROLLER_GET_SYNC_STATE_DATA: request the replicas of a group."""
    return Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=json.dumps([broker]).encode())


@protocol_checked
def read_replicas(answer: Command, broker: str) -> dict[int, bool]:
    """Return whether each replica is in sync, by the replica's number.

    The input is the answer to CONTROLLER_GET_SYNC_STATE_DATA. The result is empty if the register has no such group.
    """
    table = read_json_answer(answer)["replicasInfoTable"]
    group = table.get(broker) or {"inSyncReplicas": [], "notInSyncReplicas": []}
    found: dict[int, bool] = {}
    for is_in_sync, key in ((True, "inSyncReplicas"), (False, "notInSyncReplicas")):
        found |= {number(each["brokerId"], 1): is_in_sync for each in group[key]}
    return found


@protocol_checked
def read_group_master(answer: Command) -> GroupMaster:
    """Return the group in an answer to `elect_command` or `replica_info_command`.

    Raise ProtocolError if it is invalid.
    """
    fields = answer.fields
    data = read_json_answer(answer)
    master = number(fields["masterBrokerId"], -1) if fields.get("masterBrokerId") is not None else -1
    return GroupMaster(
        master if master > 0 else None,
        number(fields["masterEpoch"]),
        tuple(number(each, 1) for each in data["syncStateSet"]),
        str(fields.get("raymqWarning") or "")[:1000],
        changed=fields.get("raymqChanged") == "true",
    )
