"""The transport of a `KeeperRegister` to keepers that listen on sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from raymq.actors.errors import RayMQError
from raymq.actors.keeper.keeper_messages import Answer, KeeperCall
from raymq.actors.keeper.keeper_set import MAX_KEEPERS, KeeperSet
from raymq.actors.keeper.proposal import Answers
from raymq.actors.keeper.serving.keeper_channel import KeeperChannel
from raymq.actors.wire.tls import ReloadingContext

#: The time-out of one call in seconds. A master uses 1.6 s of a lease of 2 s, and renews it every half second: after a
#: call to a keeper that hangs there is time for another one.
ASK_SECONDS: Final = 0.8
#: With more connections than this, those to keepers outside the current set are closed.
_MAX_CHANNELS: Final = 4 * MAX_KEEPERS

_log = logging.getLogger(__name__)


class SocketQuorumTransport:
    """`QuorumTransport` over one connection per keeper.

    Made, used and closed on one event loop.
    """

    def __init__(
        self,
        known: KeeperSet | None = None,
        *,
        tls: ReloadingContext | None = None,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        """Create the transport without a connection.

        `known`: keepers whose addresses are current. A set that keepers report has the addresses with which they were
        added, and a machine may have another address since.
        """
        self._addresses = {} if known is None else {each.incarnation: each.address for each in known.members.values()}
        self._tls = tls
        self._ask_seconds = ask_seconds
        self._channels: dict[str, KeeperChannel] = {}

    async def ask(
        self, keepers: KeeperSet, calls: Mapping[int, KeeperCall], is_enough: Callable[[Answers], bool]
    ) -> Answers:
        """Send calls to keepers and return the answers, as `QuorumTransport.ask` describes."""
        channels = self._channels_to(keepers)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._ask_seconds
        tasks = {loop.create_task(self._request(channels[number], call)): number for number, call in calls.items()}
        answers: dict[int, Answer] = {}
        waiting = set(tasks)
        try:
            while waiting and not is_enough(answers):
                done, waiting = await asyncio.wait(
                    waiting, timeout=max(0.0, deadline - loop.time()), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                answers |= {tasks[each]: answer for each in done if (answer := each.result()) is not None}
        finally:
            # The calls stay sent; an answer that arrives later is dropped.
            for task in waiting:
                task.cancel()
        return answers

    async def pause(self, seconds: float) -> None:
        """Sleep for so many seconds."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close all connections; calls in progress end without answers."""
        for channel in self._channels.values():
            channel.close()
        await asyncio.sleep(0)

    async def _request(self, channel: KeeperChannel, call: KeeperCall) -> Answer | None:
        try:
            return await channel.ask(call, self._ask_seconds)
        except RayMQError as error:
            _log.debug("no answer from the keeper at %s: %s", channel.address, error)
        except Exception:  # noqa: BLE001 - `ask` never fails
            _log.exception("a request to the keeper at %s failed", channel.address)
        return None

    def _channels_to(self, keepers: KeeperSet) -> dict[int, KeeperChannel]:
        """Return the channel to each of the keepers, and create those that are missing."""
        addresses = {
            number: self._addresses.get(member.incarnation, member.address)
            for number, member in keepers.all_members.items()
        }
        if len(self._channels) > _MAX_CHANNELS:
            for address in self._channels.keys() - set(addresses.values()):
                self._channels.pop(address).close()
        for address in addresses.values():
            if address not in self._channels:
                self._channels[address] = KeeperChannel(address, self._tls)
        return {number: self._channels[address] for number, address in addresses.items()}
