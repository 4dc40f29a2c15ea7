"""A keeper without Ray: its decisions behind its own socket.

The actor in `keeper_actor` wraps it. Its address is chosen once and kept in `<directory>/keeper-<number>.json`. The
keeper's record is `<directory>/keeper-<number>.record`. The set of keepers that all others know has the address, so a
restarted keeper uses it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from raymq.actors.keeper.keeper_codec import MAX_MESSAGE_BYTES
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.serving.handlers import handlers
from raymq.actors.keeper.serving.local_keeper import LocalKeeper
from raymq.actors.ports import bind_persistent_port
from raymq.actors.protocol import KeeperSpec
from raymq.actors.wire.server import Server
from raymq.actors.wire.server_limits import ServerLimits
from raymq.actors.wire.tls import server_context
from raymq.storage.files import json_file

_HEADER_BYTES: Final = 16 << 10
#: A call has some 30 KB at most; each client process has one connection.
_LIMITS: Final = ServerLimits(
    frame_bytes=MAX_MESSAGE_BYTES + _HEADER_BYTES,
    header_bytes=_HEADER_BYTES,
    json_header_bytes=_HEADER_BYTES,
    connections=1_000,
    connection_request_bytes=1 << 20,
    total_request_bytes=16 << 20,
    frame_seconds=10.0,
    drain_seconds=1.0,
)


class KeeperService:
    """One running keeper. Made by `start`, used and stopped on its event loop."""

    def __init__(self, spec: KeeperSpec, keeper: LocalKeeper, port: int) -> None:
        self.address = f"{spec.host}:{port}"
        self.keeper = keeper
        self._server = Server(
            handlers(keeper), limits=_LIMITS, tls=None if spec.tls is None else server_context(spec.tls)
        )

    @classmethod
    async def start(cls, spec: KeeperSpec) -> KeeperService:
        """Open the keeper and listen.

        Raises:
            OSError: the port is taken.
            StoreLocked: another process serves this keeper.
            StoreCorrupt: its address cannot be read (the keeper's status reports a record that cannot be read).
            StoreFull, StoreBusy, StoreFailed: its files cannot be read or written.
        """
        folder = Path(spec.directory)
        name = f"keeper-{spec.number}"
        keeper = await LocalKeeper.open(spec.number, spec.cluster, folder / f"{name}.record")
        try:
            file = folder / f"{name}.json"
            last_port = json_file.load_as(file, _kept)
            bound = bind_persistent_port(spec.host, spec.port or last_port)
            try:
                port = int(bound.getsockname()[1])
                service = cls(spec, keeper, port)
                if port != last_port:
                    json_file.save(file, {"host": spec.host, "port": port}, _kept)
                await service._server.start(bound)
            except BaseException:
                bound.close()
                raise
        except BaseException:
            await keeper.stop()
            raise
        return service

    async def found(self, record: KeeperRecord) -> None:
        """Begin as one of a new set of keepers, as `LocalKeeper.found` describes."""
        await self.keeper.found(record)

    async def reset(self, record: KeeperRecord) -> None:
        """Begin as a keeper to be added, as `LocalKeeper.reset` describes."""
        await self.keeper.reset(record)

    async def stop(self) -> None:
        """Stop listening and release the file; masters go on with the other keepers."""
        await self._server.stop()
        await self.keeper.stop()


def _kept(raw: Mapping[str, Any]) -> int:
    port = int(raw.get("port", 0))
    if not 0 <= port < 1 << 16:
        raise ValueError(f"port {port}")
    return port
