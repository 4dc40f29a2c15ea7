"""The connection to one keeper.

A caller may be cancelled before its answer arrives: a quorum transport stops waiting once other keepers have answered.
"""

from __future__ import annotations

from raymq.actors.errors import ProtocolError
from raymq.actors.keeper.keeper_codec import decode_answer, encode_call
from raymq.actors.keeper.keeper_messages import Answer, KeeperCall, KeeperRefused, Reason
from raymq.actors.wire.commands.keeper_commands import ask_keeper_command, read_saves
from raymq.actors.wire.reconnecting_channel import SILENT_SECONDS, ReconnectingChannel
from raymq.actors.wire.tls import ReloadingContext


class KeeperChannel:
    """A channel to the keeper at one address. Used on one event loop."""

    def __init__(
        self, address: str, tls: ReloadingContext | None = None, *, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        self.address = address
        self._channel = ReconnectingChannel(address, tls, silent_seconds=silent_seconds)
        #: The greatest count of saves that each incarnation of the keeper has reported; see `Acceptor.handle`.
        self._saves: dict[str, int] = {}

    async def ask(self, call: KeeperCall, timeout: float) -> Answer:
        """Return the keeper's answer to a call.

        Raises:
            RayMQError: there is no answer within `timeout` seconds, or no valid one.
        """
        seen = self._saves.get(call.incarnation, 0)
        answer = await self._channel.request(ask_keeper_command(encode_call(call), seen), timeout)
        saves = read_saves(answer)
        decided = decode_answer(bytes(answer.body))
        if isinstance(decided, KeeperRefused) and decided.reason is Reason.NOT_A_VOTER:
            return decided  # another incarnation than the call was for, with its own count
        if saves < seen:
            raise ProtocolError(f"the keeper at {self.address} has an older copy of its file")
        # Former incarnations receive no more calls.
        self._saves = {call.incarnation: max(saves, self._saves.get(call.incarnation, 0))}
        return decided

    def close(self) -> None:
        """Close the connection; calls in progress end without an answer."""
        self._channel.close()
