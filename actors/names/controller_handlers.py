"""Handlers of RocketMQ's controller requests, which use the `ControllerFacade`.

Only clusters with replicas have a facade. A cluster with one copy per group has no keepers, and its name servers do not
support these requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.actors.wire.tls import ReloadingContext

if TYPE_CHECKING:
    from raymq.actors.names.controller_facade import ControllerFacade

CODES: Final = (
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_GET_REPLICA_INFO,
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    RequestCode.CLEAN_BROKER_DATA,
)


class ControllerHandlers:
    """The handlers of one name server, used on its event loop.

    Call `close` at the end.
    """

    def __init__(
        self, address: str, register_at: Callable[[], Mapping[str, str]], tls: ReloadingContext | None = None
    ) -> None:
        """Store the arguments of `ControllerFacade`, which the first request creates."""
        self._address = address
        self._register_at = register_at
        self._tls = tls
        self._facade: ControllerFacade | None = None

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of controller requests."""
        return dict.fromkeys(CODES, self._request)

    async def close(self) -> None:
        """Close the connections to keepers and brokers."""
        if self._facade is not None:
            await self._facade.close()

    async def _request(self, _: ServerConnection, request: Command) -> Command:
        if not self._register_at():
            remark = f" request type {request.code} not supported: no broker here has replicas"
            return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        if self._facade is None:
            from raymq.actors.names.controller_facade import ControllerFacade

            self._facade = ControllerFacade(self._address, self._register_at, self._tls)
        return await self._facade.answer(request)
