"""Brokers that are gone for good."""

from __future__ import annotations

from functools import partial

from raymq.actors.errors import InvalidInput
from raymq.actors.wire.commands.homes import forget_broker_command
from raymq.actors.wire.commands.members import not_member_command
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.requests import fan_out


async def forget(mq: Connection, broker: str) -> None:
    """Name servers first: brokers learn from these who is there."""
    broker = arguments.text("broker", broker)
    if broker in await fan_out.masters(mq):
        raise InvalidInput("broker", "one that has left the routes", broker)
    await fan_out.ask_name_servers(mq, partial(not_member_command, broker))
    fan_out.unless_refused(await fan_out.ask_all(mq, partial(forget_broker_command, broker)))
