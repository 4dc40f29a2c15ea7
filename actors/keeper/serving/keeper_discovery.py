"""Find the set of keepers from the current or former addresses of some of them.

Each keeper reports the set that it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from raymq.actors.errors import RayMQError
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.wire.commands.keeper_commands import KeeperStatus, keeper_status_command, read_keeper_status
from raymq.actors.wire.reconnecting_channel import ReconnectingChannel
from raymq.actors.wire.tls import ReloadingContext

_ASK_SECONDS: Final = 1.0


async def find_keepers(addresses: Mapping[int, str], tls: ReloadingContext | None = None) -> KeeperSet | None:
    """Return the newest set that the keepers at these addresses report; None without any.

    A register that is created with an older set than the current one learns the newer set from the keepers.
    """

    async def ask(address: str) -> KeeperStatus | None:
        channel = ReconnectingChannel(address, tls, waits_for_server=False)
        try:
            return read_keeper_status(await channel.request(keeper_status_command(), _ASK_SECONDS))
        except RayMQError:
            return None
        finally:
            channel.close()

    answers = await asyncio.gather(*map(ask, addresses.values()))
    newest = max((each for each in answers if each is not None), key=lambda each: each.set_number, default=None)
    if newest is None or newest.set_number == 0:
        return None
    members = {
        number: KeeperMember(addresses[number], incarnation)
        for number, incarnation in newest.members.items()
        if number in addresses
    }
    return KeeperSet(newest.set_number, members) if len(members) == len(newest.members) else None
