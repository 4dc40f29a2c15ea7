"""Ask for a topic's rates and its route; see `Admin.topic_rates` and `Admin.topic_route`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from raymq.actors.errors import BrokerUnavailable, RayMQError
from raymq.actors.naming import check_topic
from raymq.actors.protocol import MASTER_ID
from raymq.actors.wire.commands import admin_commands, member_commands
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.requests import fan_out
from raymq.client.results import BrokerRoute, TopicRates


async def rates(mq: Connection, topic: str) -> list[TopicRates]:
    """Return the rates of a topic on each of its brokers, sorted by name.

    See `Admin.topic_rates`.
    """
    check_topic(topic)
    addresses = (await mq.routes.readable(topic, fresh=True)).addresses
    answers = await fan_out.request_each(mq, addresses, partial(admin_commands.groups_of_command, topic))
    found = []
    for broker, answer in sorted(answers.items()):
        if isinstance(answer, BrokerUnavailable):
            found.append(TopicRates(broker, None, None, {}))
            continue
        groups = admin_commands.read_groups_of(answer) if isinstance(answer, Command) else []
        counters = [("TOPIC_PUT_NUMS", topic), ("TOPIC_PUT_SIZE", topic)]
        counters += [("GROUP_GET_NUMS", f"{topic}@{group}") for group in groups]
        stored, size, *delivered = await _means(mq, broker, addresses[broker], counters)
        found.append(TopicRates(broker, stored, size, dict(zip(groups, delivered, strict=True))))
    return found


async def _means(mq: Connection, broker: str, address: str, counters: Iterable[tuple[str, str]]) -> list[float | None]:
    """Return each counter's mean per second over the last minute.

    None where the broker does not answer.

    A broker has no counter for what it has not counted since its start: the rate is 0.
    """

    async def mean(counter: tuple[str, str]) -> float | None:
        command = partial(member_commands.counter_command, *counter)
        try:
            return member_commands.read_rate(await fan_out.request_with_retry(mq, address, command, broker))
        except BrokerUnavailable:
            return None
        except RayMQError:
            return 0.0

    return await fan_out.gather(counters, mean)


async def route(mq: Connection, topic: str) -> list[BrokerRoute]:
    """Return the brokers of a topic, sorted by name; see `Admin.topic_route`."""
    check_topic(topic)
    found = await mq.routes.get(topic, fresh=True)
    brokers: Mapping[str, tuple[str, Mapping[int, str]]] = (await mq.routes.cluster()).brokers
    here = {each.broker: each for each in found.queues if each.broker in found.addresses}
    gone = {each.data.broker: each.data for each in found.away if each.data.broker not in here}
    return [
        BrokerRoute(
            name,
            found.addresses.get(name),
            data.read_queues,
            data.write_queues,
            data.perm,
            sorted(address for each, address in brokers.get(name, ("", {}))[1].items() if each != MASTER_ID),
        )
        for name, data in sorted({**gone, **here}.items())
    ]
