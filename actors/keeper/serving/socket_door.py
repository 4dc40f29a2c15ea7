"""The door of a `KeeperRegister` to keepers that listen on sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from raymq.actors.errors import RayMQError
from raymq.actors.keeper.keeper_set import MOST_KEEPERS, KeeperSet
from raymq.actors.keeper.messages import Answer, KeeperCall
from raymq.actors.keeper.proposal import Answers
from raymq.actors.keeper.serving.keeper_channel import KeeperChannel
from raymq.actors.wire.tls import RenewedContext

#: So long one question may take. A master uses 1.6 s of a lease of 2 s, and asks every half second: a question that has
#: met a keeper which hangs leaves time for another one.
ASK_SECONDS: Final = 0.8
#: Of more connections those are closed that lead to nobody of the set that is asked.
_MOST_CHANNELS: Final = 4 * MOST_KEEPERS

_log = logging.getLogger(__name__)


class SocketKeeperDoor:
    """`KeeperDoor` over one connection for each keeper. Made, used and closed on one event loop."""

    def __init__(
        self,
        known: KeeperSet | None = None,
        *,
        tls: RenewedContext | None = None,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        """`known`: keepers whose addresses are surely those of now. The addresses in a set that keepers tell are those
        with which they were taken in; a machine may have another one since.
        """
        self._addresses = {} if known is None else {each.incarnation: each.address for each in known.members.values()}
        self._tls = tls
        self._ask_seconds = ask_seconds
        self._channels: dict[str, KeeperChannel] = {}

    async def ask(
        self, keepers: KeeperSet, asked: Mapping[int, KeeperCall], is_enough: Callable[[Answers], bool]
    ) -> Answers:
        """As `KeeperDoor.ask`."""
        channels = self._channels_to(keepers)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._ask_seconds
        tasks = {loop.create_task(self._ask(channels[number], call)): number for number, call in asked.items()}
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
            # What was sent stays sent; what is answered now comes too late for this question.
            for task in waiting:
                task.cancel()
        return answers

    async def pause(self, seconds: float) -> None:
        """As `KeeperDoor.pause`."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close all connections; whoever asks then has no answers."""
        for channel in self._channels.values():
            channel.close()
        await asyncio.sleep(0)

    async def _ask(self, channel: KeeperChannel, call: KeeperCall) -> Answer | None:
        try:
            return await channel.ask(call, self._ask_seconds)
        except RayMQError as error:
            _log.debug("no answer of the keeper at %s: %s", channel.address, error)
        except Exception:  # noqa: BLE001 - whatever it is, a door never fails
            _log.exception("a question to the keeper at %s failed", channel.address)
        return None

    def _channels_to(self, keepers: KeeperSet) -> dict[int, KeeperChannel]:
        """The channel to each of them, made now if there is none."""
        addresses = {
            number: self._addresses.get(member.incarnation, member.address)
            for number, member in keepers.everyone.items()
        }
        if len(self._channels) > _MOST_CHANNELS:
            for address in self._channels.keys() - set(addresses.values()):
                self._channels.pop(address).close()
        for address in addresses.values():
            if address not in self._channels:
                self._channels[address] = KeeperChannel(address, self._tls)
        return {number: self._channels[address] for number, address in addresses.items()}
