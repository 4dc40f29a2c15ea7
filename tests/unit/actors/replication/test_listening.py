"""The sockets of a broker of a group: each role's server has duplicates, and they do not disturb each other."""

from __future__ import annotations

import asyncio
import os

from raymq.actors.broker.replica.broker_sockets import BrokerSockets


def test_sockets_for_the_next_role_leave_those_of_the_present_one_as_they_are() -> None:
    """Duplicates share whether they block: a server's loop would wait for ever for a client that has gone again."""

    async def begin() -> None:
        listening = BrokerSockets("127.0.0.1", 0, 0, None)
        await listening.refuse({})
        duplicates = listening.dup_client_sockets()
        try:
            assert not any(os.get_blocking(each.fileno()) for each in duplicates)
        finally:
            for each in duplicates:
                each.close()
            await listening.close()

    asyncio.run(begin())
