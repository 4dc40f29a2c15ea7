"""The two doors of a broker, each as something that takes commands: its socket, and `invoke`, which is called."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Protocol

from raymq.actors.broker.service import BrokerService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.wire import bare_frame as bare
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from tests.wire_server import Peer


class BrokerClient(Protocol):
    """A way to the broker. `ask` gives its answer, whatever its code; `begin` does not wait for it."""

    def ask(self, command: Command, timeout: float = 10.0) -> Command: ...

    def begin(self, command: Command) -> Future[Command]: ...

    def leave(self) -> None:
        """End what stands for the connection, as an idle time-out would."""


class SocketBrokerClient:
    def __init__(self, loop: EventLoopThread, broker: BrokerService) -> None:
        self._loop = loop
        self._peer = loop.run(Peer.connect(broker.address))
        self._hearing = asyncio.Lock()
        self._opaque = 0

    def ask(self, command: Command, timeout: float = 10.0) -> Command:
        return self.begin(command).result(timeout)

    def begin(self, command: Command) -> Future[Command]:
        self._opaque += 1
        command.opaque = self._opaque
        return self._loop.submit(self._exchange(command))

    def leave(self) -> None:
        self._loop.loop.call_soon_threadsafe(self._peer.close)

    async def _exchange(self, command: Command) -> Command:
        self._peer.say(command)
        if command.is_oneway:
            return command.response(ResponseCode.SUCCESS)
        async with self._hearing:
            while not (answer := await self._peer.hear(20.0)).is_response:
                pass  # the broker's own, such as "your group has changed"
        assert answer.opaque == command.opaque
        return answer


class BareDoor(SocketBrokerClient):
    """A socket on which requests without fields go in bare frames."""

    async def _exchange(self, command: Command) -> Command:
        if command.fields or command.serialization is not Serialization.MSGPACK:
            return await super()._exchange(command)
        self._peer.writer.write(bare.request(command.code, command.opaque, len(command.body)) + command.body)
        return await self._peer.hear(20.0)


class InvokeBrokerClient:
    def __init__(self, loop: EventLoopThread, broker: BrokerService) -> None:
        self._loop = loop
        self._broker = broker

    def ask(self, command: Command, timeout: float = 10.0) -> Command:
        return self.begin(command).result(timeout)

    def begin(self, command: Command) -> Future[Command]:
        return self._loop.submit(self._broker.invoke("a session", command.with_joined_body()))

    def leave(self) -> None:
        session = self._broker._door._sessions.get("a session")
        if session is not None:
            self._loop.loop.call_soon_threadsafe(session.connection.close)
