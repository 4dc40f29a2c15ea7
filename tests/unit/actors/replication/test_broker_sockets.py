"""Test that the duplicated sockets of a broker's roles do not disturb each other."""

from __future__ import annotations

import asyncio
import os

from raymq.actors.broker.replica.broker_sockets import BrokerSockets


def test_duplicated_sockets_stay_non_blocking() -> None:
    """Guard against blocking duplicates.

    Duplicates share the blocking mode: a server's loop would wait forever for a client that has left.
    """

    async def begin() -> None:
        sockets = BrokerSockets("127.0.0.1", 0, 0, None)
        await sockets.refuse({})
        duplicates = sockets.dup_client_sockets()
        try:
            assert not any(os.get_blocking(each.fileno()) for each in duplicates)
        finally:
            for each in duplicates:
                each.close()
            await sockets.close()

    asyncio.run(begin())
