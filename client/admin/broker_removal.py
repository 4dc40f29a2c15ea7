"""Delete brokers that are permanently gone from the cluster's records."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from raymq.actors.errors import InvalidInput, RayMQError
from raymq.actors.wire.commands.coordinator_directory_commands import (
    delete_broker_command,
    forget_broker_command,
    known_brokers_command,
    read_forgotten,
    read_known_brokers,
)
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.requests import fan_out

_SECONDS = 2.0


async def registered_once(mq: Connection) -> set[str] | None:
    """Return the names of all brokers that any name server knows.

    A forgotten broker is not among them. None: no name server keeps names, as those of RocketMQ, or of a cluster in
    its first seconds.
    """

    async def names(name_server: str) -> Collection[str] | None:
        try:
            return read_known_brokers(await mq.pool.request(name_server, known_brokers_command(), _SECONDS))
        except RayMQError:
            return None

    found = [each for each in await fan_out.gather(mq.name_servers, names) if each is not None]
    return set().union(*found) if found else None


async def forget(mq: Connection, broker: str) -> bool:
    """Delete a broker from the records of all name servers and brokers.

    Return False if none of them knew it. Name servers come first, since brokers read from them which brokers exist. An
    interrupted call may be repeated.

    Raise InvalidInput if it is in the routes.
    """
    known = broker in await _lost(mq, broker)
    await fan_out.request_name_servers(mq, partial(delete_broker_command, broker))
    answers = fan_out.require_answers(await fan_out.request_all(mq, partial(forget_broker_command, broker)))
    return any(map(read_forgotten, answers.values())) or known


async def forget_lost(mq: Connection, broker: str, *, dry_run: bool) -> None:
    """See `Admin.forget_broker`."""
    broker = arguments.text("broker", broker)
    arguments.flag("dry_run", dry_run)
    lost = await _lost(mq, broker)
    is_known = broker in lost if dry_run else await forget(mq, broker)
    if not is_known:
        raise InvalidInput(
            "broker", f"the name of a lost broker ({', '.join(sorted(lost)) or 'there is none'})", broker
        )


async def _lost(mq: Connection, broker: str) -> set[str]:
    """Return the names of brokers that are not in the routes.

    Raise InvalidInput if `broker` is in them.
    """
    there = await fan_out.masters(mq)
    if broker in there:
        raise InvalidInput("broker", "a broker that has left the routes", broker)
    left = (await mq.routes.cluster()).left
    return {*(await registered_once(mq) or ()), *left} - there.keys()
