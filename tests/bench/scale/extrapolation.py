"""From what was measured on one machine to 10 and 100 hosts: sums, and no guess beyond what `Assumed` says.

Everything here is processor time that is spent because there are many brokers or many clients. What a message costs is
not among it: it does not grow with the number of brokers (`clusters` measures that).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from raymq.actors.protocol import HEARTBEAT_SECONDS as BROKER_HEARTBEAT_SECONDS
from raymq.actors.route_cache import ROUTE_SECONDS
from raymq.client.members.membership import HEARTBEAT_SECONDS
from raymq.client.push.push_consumer_engine import REBALANCE_SECONDS
from tests.bench.scale import clusters, control_costs
from tests.bench.scale.rows import Row

PART: Final = "extrapolated"
HOSTS: Final = (10, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """What a cluster is taken to be: a broker group on each host, every topic on all of them.

    Attributes:
        clients_per_host: consumers, with a process and a connection to each broker.
        topics: of the cluster.
        topics_of_a_client: whose routes it asks for.
        members: of a group; all consumers are in groups of so many.
    """

    clients_per_host: int = 20
    topics: int = 1_000
    topics_of_a_client: int = 2
    members: int = 20


@dataclass(frozen=True, slots=True)
class Line:
    """What `value` there would be of something with a fixed cost and one for each of a count."""

    fixed: float
    each: float

    @classmethod
    def through(cls, points: Mapping[int, float]) -> Line:
        """The best line through values by count; flat through a single one, and never falling."""
        if len(points) == 1:
            return cls(*points.values(), 0.0)
        each, fixed = np.polyfit(list(points), list(points.values()), 1)
        if each < 0:
            return cls(float(np.mean(list(points.values()))), 0.0)
        return cls(float(fixed), float(each))

    def at(self, count: float) -> float:
        """The value for this count."""
        return self.fixed + self.each * count


class Measured:
    """The rows of the other parts, asked by what they are of. KeyError: it was not measured."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row.part, row.subject, row.stage, row.name): row.value for row in rows}

    def line(self, part: str, subject: str, name: str, stages: Mapping[int, str]) -> Line:
        """Through what was measured at these stages, by the count that each stands for, as far as it was."""
        keys = {count: (part, subject, stage, name) for count, stage in stages.items()}
        points = {count: self._rows[key] for count, key in keys.items() if key in self._rows}
        if not points:
            raise KeyError(name)
        return Line.through(points)

    def value(self, part: str, subject: str, stage: str, name: str) -> float:
        """One figure."""
        return self._rows[part, subject, stage, name]


def extrapolated(rows: Sequence[Row], assumed: Assumed, hosts: int) -> Iterator[Row]:
    """What each process spends for there being so many hosts: milliseconds of a core a second; 1,000 are the core."""
    measured, stage = Measured(rows), f"{hosts} hosts"
    groups, clients = hosts, hosts * assumed.clients_per_host
    plain = {count: clusters.stage_of(count) for count in clusters.BROKERS}
    pairs = {count: clusters.stage_of_groups(count) for count in clusters.GROUPS}
    control = control_costs.PART
    idle = "CPU, no messages"

    def row(subject: str, name: str, value: float, unit: str) -> Row:
        return Row(PART, subject, stage, name, value, unit)

    # Name server: each broker's heartbeat, each client's routes; and all registrations where it starts anew.
    widest_topics = max(control_costs.TOPICS)
    beat_us = measured.value(control, "name server", f"{assumed_stage(assumed.topics)}", "CPU of a heartbeat")
    routes = {width: f"a topic on {width}" for width in control_costs.WIDTHS}
    route_us = measured.line(control, "name server", "CPU of a route", routes).at(groups)
    beats_ms = groups / BROKER_HEARTBEAT_SECONDS * beat_us / 1e3
    asks_ms = clients * assumed.topics_of_a_client / ROUTE_SECONDS * route_us / 1e3
    yield row("name server", "heartbeats of brokers", beats_ms, "ms/s")
    yield row("name server", "routes for clients", asks_ms, "ms/s")
    topics = {count: f"{count:,} topics" for count in control_costs.TOPICS}
    register_ms = measured.line(control, "name server", "CPU of a registration", topics).at(assumed.topics)
    yield row("name server", "to learn all anew after its start", groups * register_ms / 1e3, "s")
    of_topic = measured.value(control, "name server", f"{widest_topics:,} topics", "memory of a topic of a broker")
    yield row("name server", "memory of all routes", groups * assumed.topics * of_topic / 2**20, "MiB")

    # The actors that look after all brokers.
    asked = measured.line(clusters.PART, "scheduler", idle, plain)
    yield row("scheduler", "asking what is due", asked.at(groups), "ms/s")
    for actor in ("coordinator", "keepers"):
        yield row(
            actor, "groups with two replicas", measured.line(clusters.PART, actor, idle, pairs).at(groups), "ms/s"
        )

    # A broker: what it does of itself with so many others, and what all clients ask it for being there.
    of_all = measured.line(clusters.PART, "brokers", idle, plain)
    yield row("a broker", "what it does of itself", of_all.at(groups) / groups, "ms/s")
    sizes = {members: f"{members:,} members" for members in control_costs.MEMBERS}
    greet_us = measured.line(control, "broker", "CPU of a member's heartbeat", sizes).at(assumed.members)
    list_us = measured.line(control, "broker", "CPU of a list of members", sizes).at(assumed.members)
    greets_ms = clients / HEARTBEAT_SECONDS * greet_us / 1e3
    lists_ms = clients / REBALANCE_SECONDS * list_us / 1e3
    yield row("a broker", "heartbeats of all consumers", greets_ms, "ms/s")
    yield row("a broker", "lists of members for them", lists_ms, "ms/s")
    yield row("a broker", "connections", clients, "")

    # A consumer: what it does of itself with so many brokers.
    of_consumers = measured.line(clusters.PART, "consumers", idle, plain)
    yield row("a consumer", "what it does of itself", of_consumers.at(groups) / clusters.CONSUMERS, "ms/s")


def assumed_stage(topics: int) -> str:
    """The largest registration that was measured and has no more topics."""
    below = [each for each in control_costs.TOPICS if each <= topics]
    return f"{max(below or control_costs.TOPICS[:1]):,} topics"
