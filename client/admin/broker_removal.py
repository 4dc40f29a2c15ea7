"""Delete brokers that are permanently gone from the cluster's records."""

from __future__ import annotations

from functools import partial

from raymq.actors.errors import InvalidInput
from raymq.actors.wire.commands.coordinator_directory_commands import delete_broker_command, forget_broker_command
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.requests import fan_out


async def forget(mq: Connection, broker: str) -> None:
    """Delete a broker from the records of all name servers and brokers.

    Name servers come first, since brokers read from them which brokers exist. See `Admin.forget_broker`.
    """
    broker = arguments.text("broker", broker)
    if broker in await fan_out.masters(mq):
        raise InvalidInput("broker", "a broker that has left the routes", broker)
    await fan_out.request_name_servers(mq, partial(delete_broker_command, broker))
    fan_out.require_answers(await fan_out.request_all(mq, partial(forget_broker_command, broker)))
