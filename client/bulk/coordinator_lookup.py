"""Find the coordinator of a key, or create one.

The coordinator is the one broker that keeps a series of writes or a stream's plans. A lookup queries all
brokers, and any of them may have a record of it: the client that creates a coordinator sends it to all brokers. So it
can be found while it is away. A coordinator is created only if all brokers that ever existed report that there is none:
each returns the brokers of which it has a record, and the lookup waits for one that is away (the broker's
`core.coordinator_directory` describes how brokers record each other). The first of them by name decides, so that of two
concurrent choices one is in force. The choice is made among the brokers that have room, by rendezvous hashing.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from raymq.actors.errors import BrokerUnavailable, MessageNotFound, ProtocolError, RayMQError
from raymq.actors.protocol import RECENTLY_LEFT_SECONDS
from raymq.actors.wire.commands.coordinator_directory_commands import (
    CoordinatorEntry,
    find_coordinator_command,
    known_brokers_command,
    read_coordinator,
    read_known_brokers,
    read_registered_coordinator,
    read_uptime,
    register_coordinator_command,
    uptime_command,
)
from raymq.actors.wire.commands.target_broker import with_target_broker
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.requests.broker_requests import RETRY_TIMEOUT_SECONDS, retry_while_unavailable
from raymq.client.requests.fan_out import gather, masters

#: The time-out of one request, in seconds.
_REQUEST_SECONDS: Final = 5.0
#: A kind and a key for which no coordinator is ever created.
_ANY: Final = "any"
#: The remedy in errors about a broker that does not come back.
REMEDY: Final = "if the broker is gone for good, remove it from the cluster's records with Admin.forget_broker"


async def ensure_coordinator(
    mq: Connection,
    kind: str,
    key: str,
    *,
    among: Collection[str] | None = None,
    seconds: float = RETRY_TIMEOUT_SECONDS,
) -> str:
    """Return the name of the coordinator of `key`; create one if there is none.

    The coordinator may be away.

    Args:
        kind: the kind of the key, in small letters, such as "series".
        among: the names of the brokers that may become the coordinator; None: all.

    Raises:
        BrokerUnavailable: a broker does not answer or is away, and no other one has a record of the coordinator; or no
            broker may become it.
        StoreFull, StoreFailed: the coordinator could not be stored.
        InvalidInput: the kind or the key is invalid, or the brokers have as many coordinators as they may.
    """

    async def attempt() -> str | None:
        known = await _query_all(mq, kind, key)
        if isinstance(known, str):
            return known
        able = [name for name, takes_new in known.items() if takes_new and (among is None or name in among)]
        return await _create_coordinator(mq, kind, key, rendezvous_choice(key, able), known) if able else None

    coordinator = await retry_while_unavailable(attempt, seconds)
    if coordinator is None:
        raise BrokerUnavailable("cluster", f"no broker has room for a new {kind}")
    return coordinator


async def find_coordinator(mq: Connection, kind: str, key: str) -> str | Mapping[str, bool]:
    """Return the name of the coordinator of `key`.

    If all brokers report that there is none, return whether each of them takes new keys, by name.

    Raises:
        BrokerUnavailable: a broker does not answer or is away, and no other one has a record of the coordinator.
        InvalidInput: the kind or the key is invalid.
    """
    return await retry_while_unavailable(lambda: _query_all(mq, kind, key))


async def is_forgotten(mq: Connection, broker: str) -> bool:
    """Return True if all available brokers have deleted this broker from their records.

    The broker is not in the routes; it was declared permanently gone.

    Raises:
        BrokerUnavailable: a broker does not answer, or does not have the list of all brokers yet.
    """

    async def members(there: tuple[str, str]) -> frozenset[str]:
        name, address = there
        command = with_target_broker(name, find_coordinator_command(_ANY, _ANY))
        return frozenset(read_coordinator(await mq.pool.request(address, command, _REQUEST_SECONDS)).members)

    answers = await gather((await masters(mq)).items(), members)
    return not any(broker in each for each in answers)


async def unknown_brokers(mq: Connection) -> list[str]:
    """Return the brokers that are away and whose topics the name server does not have.

    A name server that was just started has a record of their names only. One that has run for `RECENTLY_LEFT_SECONDS`
    reports with each route the brokers that left it; the list is empty then.
    """
    age = read_uptime(await mq.routes.ask(uptime_command()))
    if age is None or age >= RECENTLY_LEFT_SECONDS:
        return []
    try:
        known = set(read_known_brokers(await mq.routes.ask(known_brokers_command())))
    except MessageNotFound:
        return []
    return sorted(known - (await mq.routes.cluster()).masters.keys())


async def request_named_broker(mq: Connection, broker: str, command: Command, seconds: float) -> Command:
    """Return the answer of the broker called `broker`, which has `seconds` for it.

    Raises:
        BrokerUnavailable: the broker is away. Also any error of its answer.
    """
    address = (await masters(mq)).get(broker)
    if address is None:
        raise BrokerUnavailable(broker, "no name server lists it now")
    return await mq.pool.request(address, with_target_broker(broker, command), seconds)


def rendezvous_choice(key: str, brokers: Iterable[str]) -> str:
    """Return the broker that rendezvous hashing chooses for `key`.

    All clients choose the same. If a broker is added or removed, the choice changes for few keys.
    """

    def weight(broker: str) -> bytes:
        return hashlib.blake2b(f"{key}\0{broker}".encode("utf-8", "surrogatepass"), digest_size=8).digest()

    return max(sorted(brokers), key=weight)


async def _query_all(mq: Connection, kind: str, key: str) -> str | Mapping[str, bool]:
    """Return the coordinator, or which brokers take new keys if there is none.

    The latter requires that all brokers that ever existed report that there is none.
    """
    addresses = await masters(mq)

    async def ask(name: str, address: str) -> CoordinatorEntry | RayMQError:
        try:
            command = with_target_broker(name, find_coordinator_command(kind, key))
            return read_coordinator(await mq.pool.request(address, command, _REQUEST_SECONDS))
        except RayMQError as error:
            return error

    requests = {asyncio.ensure_future(ask(name, address)): name for name, address in addresses.items()}
    waiting: set[asyncio.Task[CoordinatorEntry | RayMQError]] = set(requests)
    found: dict[str, bool] = {}
    members: set[str] = set()
    problem: RayMQError | None = None
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                entry = each.result()
                if isinstance(entry, RayMQError):
                    problem = entry
                elif entry.coordinator is not None:  # one broker's record is enough: the others are not waited for
                    return entry.coordinator
                else:
                    found[requests[each]] = entry.takes_new
                    members.update(entry.members)
    finally:
        for each in waiting:
            each.cancel()
    if problem is not None:
        raise problem
    if away := sorted(members - found.keys()):
        reason = f"not reachable, and it may have the only record of the coordinator of this {kind}"
        raise BrokerUnavailable(", ".join(away), reason, remedy=REMEDY)
    return found


async def _create_coordinator(mq: Connection, kind: str, key: str, coordinator: str, brokers: Collection[str]) -> str:
    """Have the first broker by name decide on the coordinator, and return it.

    All brokers have reported that there is none. The coordinator and the other brokers are informed of the decision.
    Raise BrokerUnavailable if the request has to be repeated.
    """

    async def register(broker: str, coordinator: str, brokers: Collection[str] | None = None) -> str:
        command = register_coordinator_command(kind, key, coordinator, brokers)
        return read_registered_coordinator(await request_named_broker(mq, broker, command, _REQUEST_SECONDS))

    decider = min(brokers)
    coordinator = await register(decider, coordinator, brokers)
    # The coordinator has to record it itself. Each other broker that records it can report it while the coordinator is
    # away.
    confirmed = coordinator if coordinator == decider else await register(coordinator, coordinator)
    if confirmed != coordinator:
        raise ProtocolError(
            f"{decider} names {coordinator} as coordinator of the {kind} {key!r}, but {coordinator} names {confirmed}"
        )

    async def note(broker: str) -> None:
        with contextlib.suppress(RayMQError):
            await register(broker, coordinator)

    await gather(set(brokers) - {decider, coordinator}, note)
    return coordinator
