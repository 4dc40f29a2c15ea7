"""Request an election of a master; see `Admin.elect`."""

from __future__ import annotations

from typing import Final

from raymq.actors.errors import InvalidInput, ProtocolError
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.commands.controller_commands import elect_command, read_group_master, replica_info_command
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.results import Election

#: An election may have to wait until a master's lease ends, and to query replicas.
_ELECT_SECONDS: Final = 12.0
MAX_REPLICA: Final = 15


def checked(broker: object, replica: object) -> tuple[str, int | None]:
    """Return the checked arguments of an election, the replica as its number in the register.

    Numbers in the register are counted from 1, those of callers from 0.
    """
    name = arguments.text("broker", broker)
    return name, None if replica is None else arguments.whole("replica", replica, 0, MAX_REPLICA) + 1


async def elect(mq: Connection, broker: str, number: int | None, *, unclean: bool, dry_run: bool) -> Election:
    """Request the election, or with `dry_run` the current state, from any name server.

    Raise InvalidInput if the cluster's brokers have no replicas.
    """
    command = replica_info_command(broker) if dry_run else elect_command(broker, number, unclean=unclean)
    try:
        result = read_group_master(await mq.routes.ask(command, _ELECT_SECONDS))
    except ProtocolError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED.name:
            raise InvalidInput("broker", "a broker of a group that has replicas", broker) from None
        raise
    return Election(
        broker,
        None if result.master is None else result.master - 1,
        result.epoch,
        [each - 1 for each in result.in_sync],
        result.changed,
        result.warning,
    )


def in_words(election: Election) -> str:
    """Return an election's outcome as one sentence."""
    if election.replica is None:
        return f"{election.broker} has no master"
    warning = f"; {election.warning}" if election.warning else ""
    return f"replica {election.replica} of {election.broker} is master of epoch {election.epoch}{warning}"
