"""Clients for the two interfaces of a broker: its socket, and the `invoke` method."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Protocol

from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.wire import bare_frame as bare
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from tests.wire_server import Peer


class BrokerClient(Protocol):
    """A client of a broker.

    `ask` returns the answer with any code, `begin` does not wait for it.
    """

    def ask(self, command: Command, timeout: float = 10.0) -> Command: ...

    def begin(self, command: Command) -> Future[Command]: ...

    def leave(self) -> None:
        """End the connection or session, as an idle time-out would."""


class SocketBrokerClient:
    def __init__(self, loop: EventLoopThread, broker: LeaderService) -> None:
        self._loop = loop
        self._peer = loop.run(Peer.connect(broker.address))
        self._receive_lock = asyncio.Lock()
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
        async with self._receive_lock:
            while not (answer := await self._peer.hear(20.0)).is_response:
                pass  # a request of the broker, such as "your group has changed"
        assert answer.opaque == command.opaque
        return answer


class BareFrameClient(SocketBrokerClient):
    """A socket client that sends requests without fields as bare frames."""

    async def _exchange(self, command: Command) -> Command:
        if command.fields or command.serialization is not Serialization.MSGPACK:
            return await super()._exchange(command)
        self._peer.writer.write(bare.request(command.code, command.opaque, len(command.body)) + command.body)
        return await self._peer.hear(20.0)


class InvokeBrokerClient:
    def __init__(self, loop: EventLoopThread, broker: LeaderService) -> None:
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
