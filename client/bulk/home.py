"""Homes: what is kept on one broker only (a series of writes, a stream's plans) is found again, whoever looks for it.

All brokers are asked who the home of a key is, and each may know it: who makes a home tells all of them. So it is known
while it is away. A home is made where all brokers that were ever there say that there is none: each tells which ones it
knows of, and one that is away is waited for (how brokers come to know of each other is told in the broker's
`core.known_homes`). The first of them by name decides, so that of two who choose at the same time one has chosen. One
of those that have room is chosen, by rendezvous hashing.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from raymq.actors.errors import BrokerUnavailable, MessageNotFound, ProtocolError, RayMQError
from raymq.actors.protocol import AWAY_SECONDS
from raymq.actors.wire.commands.homes import (
    KnownHome,
    find_home_command,
    read_home,
    read_remembered,
    remember_home_command,
)
from raymq.actors.wire.commands.meant import meant_for
from raymq.actors.wire.commands.members import age_command, members_command, read_age, read_members
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.requests.asking import PATIENCE_SECONDS, patiently
from raymq.client.requests.fan_out import gather, masters

#: What one question or note may take.
_REQUEST_SECONDS: Final = 5.0
#: A kind, and a key of it, that nothing has.
_ANY: Final = "any"
#: What helps where a broker is waited for that does not come back.
REMEDY: Final = "if it is gone for good, Admin.forget_broker says so to all"


async def home_of(
    mq: Connection,
    kind: str,
    key: str,
    *,
    among: Collection[str] | None = None,
    seconds: float = PATIENCE_SECONDS,
) -> str:
    """The name of the broker that is the home of `key`, which may be away; made if there is none.

    Args:
        kind: what the key is a key of, in small letters, such as "series".
        among: the names of the brokers that may become the home; None: all.

    Raises:
        BrokerUnavailable: a broker does not answer or is away, and no other one knows the home; or none may become it.
        StoreFull, StoreFailed: it could not be kept.
        InvalidInput: no such kind or key can be, or the brokers know as many homes as they may.
    """

    async def attempt() -> str | None:
        known = await _ask_all(mq, kind, key)
        if isinstance(known, str):
            return known
        able = [name for name, takes_new in known.items() if takes_new and (among is None or name in among)]
        return await _make_home(mq, kind, key, chosen(key, able), known) if able else None

    home = await patiently(attempt, seconds)
    if home is None:
        raise BrokerUnavailable("cluster", f"no broker has room for a new {kind}")
    return home


async def find_home(
    mq: Connection, kind: str, key: str, *, seconds: float = PATIENCE_SECONDS
) -> str | Mapping[str, bool]:
    """The name of the broker that is the home of `key`; if all say that there is none, who of them may become it.

    Raises:
        BrokerUnavailable: a broker does not answer or is away, and no other one knows the home.
        InvalidInput: no such kind or key can be.
    """
    return await patiently(lambda: _ask_all(mq, kind, key), seconds)


async def is_forgotten(mq: Connection, broker: str) -> bool:
    """Whether a broker that is not in the routes is gone for good, as all that are there were told.

    Raises:
        BrokerUnavailable: one of them does not answer, or does not know yet who was ever there.
    """

    async def members(there: tuple[str, str]) -> frozenset[str]:
        name, address = there
        command = meant_for(name, find_home_command(_ANY, _ANY))
        return frozenset(read_home(await mq.pool.request(address, command, _REQUEST_SECONDS)).members)

    told = await gather((await masters(mq)).items(), members)
    return not any(broker in each for each in told)


async def unheard(mq: Connection) -> list[str]:
    """The brokers of which a name server that was just started knows the names alone, since they are away: what they
    have nobody can tell. One that is longer there tells with each route who has left it.
    """
    age = read_age(await mq.routes.ask(age_command()))
    if age is None or age >= AWAY_SECONDS:
        return []
    try:
        known = set(read_members(await mq.routes.ask(members_command())))
    except MessageNotFound:
        return []
    return sorted(known - (await mq.routes.cluster()).masters.keys())


async def ask_home(mq: Connection, home: str, command: Command, seconds: float) -> Command:
    """The answer of the broker called `home`, which may take `seconds` for it.

    Raises:
        BrokerUnavailable: it is away. Else what it refuses with.
    """
    address = (await masters(mq)).get(home)
    if address is None:
        raise BrokerUnavailable(home, "no name server knows it now")
    return await mq.pool.request(address, meant_for(home, command), seconds)


def chosen(key: str, brokers: Iterable[str]) -> str:
    """Whom everybody chooses for `key` among these brokers; one that comes or goes changes it for few keys."""

    def weight(broker: str) -> bytes:
        return hashlib.blake2b(f"{key}\0{broker}".encode("utf-8", "surrogatepass"), digest_size=8).digest()

    return max(sorted(brokers), key=weight)


async def _ask_all(mq: Connection, kind: str, key: str) -> str | Mapping[str, bool]:
    """The home; or of all brokers that were ever there, which all say that there is none, who takes a new key."""
    addresses = await masters(mq)

    async def ask(name: str, address: str) -> KnownHome | RayMQError:
        try:
            command = meant_for(name, find_home_command(kind, key))
            return read_home(await mq.pool.request(address, command, _REQUEST_SECONDS))
        except RayMQError as error:
            return error

    asked = {asyncio.ensure_future(ask(name, address)): name for name, address in addresses.items()}
    waiting: set[asyncio.Task[KnownHome | RayMQError]] = set(asked)
    found: dict[str, bool] = {}
    members: set[str] = set()
    problem: RayMQError | None = None
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                told = each.result()
                if isinstance(told, RayMQError):
                    problem = told
                elif told.home is not None:  # whoever knows it: nobody else need be waited for
                    return told.home
                else:
                    found[asked[each]] = told.takes_new
                    members.update(told.members)
    finally:
        for each in waiting:
            each.cancel()
    if problem is not None:
        raise problem
    if away := sorted(members - found.keys()):
        reason = f"away, and it may be what knows the home of this {kind}"
        raise BrokerUnavailable(", ".join(away), reason, remedy=REMEDY)
    return found


async def _make_home(mq: Connection, kind: str, key: str, home: str, asked: Collection[str]) -> str:
    """Have it decided by the first of all brokers, which have said that there is none, and tell the others; the home.

    BrokerUnavailable: it has to be asked for once more.
    """

    async def tell(broker: str, home: str, asked: Collection[str] | None = None) -> str:
        command = remember_home_command(kind, key, home, asked)
        return read_remembered(await ask_home(mq, broker, command, _REQUEST_SECONDS))

    decides = min(asked)
    home = await tell(decides, home, asked)
    # The home itself has to know it. Of the others each that knows it is one more who can tell while it is away.
    told = home if home == decides else await tell(home, home)
    if told != home:
        raise ProtocolError(f"{decides} has {home} for the home of the {kind} {key!r}, and {home} has {told}")

    async def note(broker: str) -> None:
        with contextlib.suppress(RayMQError):
            await tell(broker, home)

    await gather(set(asked) - {decides, home}, note)
    return home
