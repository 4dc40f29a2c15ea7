"""The connection to one keeper. Whether who asked has waited does not matter: a door stops waiting as soon as others
have said enough.
"""

from __future__ import annotations

from raymq.actors.errors import ProtocolError
from raymq.actors.keeper.message_json import decode_answer, encode_call
from raymq.actors.keeper.messages import Answer, KeeperCall, KeeperRefused, Reason
from raymq.actors.wire.commands.keeper import ask_keeper_command, read_saves
from raymq.actors.wire.prompt_channel import SILENT_SECONDS, PromptChannel
from raymq.actors.wire.tls import RenewedContext


class KeeperChannel:
    """To the keeper at one address. Used on one event loop."""

    def __init__(
        self, address: str, tls: RenewedContext | None = None, *, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        self.address = address
        self._channel = PromptChannel(address, tls, silent_seconds=silent_seconds)
        #: The most that each incarnation of the keeper has told; see `Acceptor.handle`.
        self._saves: dict[str, int] = {}

    async def ask(self, call: KeeperCall, timeout: float) -> Answer:
        """The keeper's answer to a question.

        Raises:
            RayMQError: there is none within `timeout` seconds, or none that counts.
        """
        seen = self._saves.get(call.incarnation, 0)
        answer = await self._channel.request(ask_keeper_command(encode_call(call), seen), timeout)
        saves = read_saves(answer)
        decided = decode_answer(bytes(answer.body))
        if isinstance(decided, KeeperRefused) and decided.reason is Reason.NOT_A_VOTER:
            return decided  # another keeper than was meant, with a count of its own
        if saves < seen:
            raise ProtocolError(f"the keeper at {self.address} was given an older copy of its file")
        # Of former incarnations nothing is asked any more.
        self._saves = {call.incarnation: max(saves, self._saves.get(call.incarnation, 0))}
        return decided

    def close(self) -> None:
        """End it; whoever asks has no answer."""
        self._channel.close()
