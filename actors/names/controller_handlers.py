"""What RocketMQ's tools ask a controller: handed to the `RegisterDesk`, which only clusters with replicas have.

A cluster whose groups have one copy has no keepers, and such questions are not served there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.actors.wire.tls import RenewedContext

if TYPE_CHECKING:
    from raymq.actors.names.register_desk import RegisterDesk

CODES: Final = (
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_GET_REPLICA_INFO,
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    RequestCode.CLEAN_BROKER_DATA,
)


class ControllerHandlers:
    """Of one name server, on its loop. `close` it."""

    def __init__(
        self, address: str, register_at: Callable[[], Mapping[str, str]], tls: RenewedContext | None = None
    ) -> None:
        """As `RegisterDesk`, which is made for the first question."""
        self._address = address
        self._register_at = register_at
        self._tls = tls
        self._desk: RegisterDesk | None = None

    def handlers(self) -> dict[int, Handler]:
        """What a name server serves of this family."""
        return dict.fromkeys(CODES, self._ask)

    async def close(self) -> None:
        """Close the connections to keepers and brokers."""
        if self._desk is not None:
            await self._desk.close()

    async def _ask(self, _: ServerConnection, request: Command) -> Command:
        if not self._register_at():
            remark = f" request type {request.code} not supported: no broker here has replicas"
            return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        if self._desk is None:
            from raymq.actors.names.register_desk import RegisterDesk

            self._desk = RegisterDesk(self._address, self._register_at, self._tls)
        return await self._desk.answer(request)
