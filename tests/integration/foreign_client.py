"""A protocol client that is not RayMQ's: it sends single commands over a socket and reads the answers."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import time
from typing import Any

from raymq.actors.wire import frame
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import FLAG_ONEWAY, MESSAGE_FRAME_BYTES, Command
from raymq.actors.wire.frame_reader import FrameReader
from raymq.actors.wire.headers.header import Header
from raymq.storage.closeable import Closeable


class ForeignClient(Closeable):
    """One connection. `pushed` holds the requests of the server."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 5.0)
        self._reader = FrameReader(MESSAGE_FRAME_BYTES)
        self._opaques = itertools.count(1)
        self._answers: dict[int, Command] = {}
        self.pushed: list[Command] = []

    @property
    def address(self) -> str:
        """Return the client's own address, "host:port"."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def send(self, command: Command, *, oneway: bool = False) -> int:
        """Send a request as a Java client does; return its opaque."""
        command.opaque, command.language = next(self._opaques), "JAVA"
        command.flag |= FLAG_ONEWAY if oneway else 0
        self._socket.sendall(frame.encode(command, MESSAGE_FRAME_BYTES) + bytes(command.body))
        return command.opaque

    def reply(self, answer: Command) -> None:
        """Answer a request of the server."""
        self._socket.sendall(frame.encode(answer) + bytes(answer.body))

    def ask(self, command: Command, seconds: float = 5.0) -> Command:
        """Send a request and wait for its answer."""
        return self.answer(self.send(command), seconds)

    def answer(self, opaque: int, seconds: float = 5.0) -> Command:
        """Return the answer to a request; TimeoutError if there is none within `seconds`."""
        deadline = time.monotonic() + seconds
        while opaque not in self._answers:
            self._receive(deadline)
        return self._answers.pop(opaque)

    def done(self, command: Command | Header) -> Command:
        """Return the answer to a request that must succeed; repeat it while the broker is busy (a loaded machine)."""
        request = command if isinstance(command, Command) else command.command()
        deadline = time.monotonic() + 30.0
        while (answer := self.ask(request)).code == ResponseCode.SYSTEM_BUSY and time.monotonic() < deadline:
            time.sleep(0.05)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    def json(self, command: Command | Header) -> Any:
        """Return the decoded body of the answer to a request that must succeed."""
        return json.loads(bytes(self.done(command).body))

    def refused(self, command: Command | Header) -> int:
        """Return the code with which a request is refused; assert that the remark gives a reason."""
        answer = self.ask(command if isinstance(command, Command) else command.command())
        assert answer.code != ResponseCode.SUCCESS
        assert answer.remark
        return answer.code

    def has_answer(self, opaque: int) -> bool:
        """Return whether a request has been answered."""
        with contextlib.suppress(TimeoutError):
            self._receive(time.monotonic() + 0.01)
        return opaque in self._answers

    def next_push(self, seconds: float = 5.0) -> Command:
        """Return the next request of the server; TimeoutError if there is none."""
        deadline = time.monotonic() + seconds
        while not self.pushed:
            self._receive(deadline)
        return self.pushed.pop(0)

    def respond(self, answer: Command) -> None:
        """Answer a request of the server."""
        self._socket.sendall(frame.encode(answer) + bytes(answer.body))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self, deadline: float) -> None:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        for command in self._reader.feed(data):
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self.pushed.append(command)
