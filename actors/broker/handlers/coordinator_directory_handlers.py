"""Handle coordinators (RayMQ's own): which broker keeps state that only one broker keeps."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from raymq.actors.broker.context import BrokerContext, text_field
from raymq.actors.broker.handlers.broker_command import Commands, changes, guard_target_broker, reads_confirmed
from raymq.actors.errors import InvalidInput, StoreError
from raymq.actors.protocol import PERM_WRITE
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.coordinator_directory_commands import WRITE
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.tables.coordinator_table import check_broker_name

#: So many coordinators are returned in one answer.
_PAGE: Final = 500


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core, directory = context.core, context.core.coordinators

    def find(_: ServerConnection, request: Command) -> Command:
        kind, key = text_field(request, "kind"), text_field(request, "key")
        coordinator = core.coordinator_of_write(key) if kind == WRITE else directory.find(kind, key)
        takes_new = False
        with contextlib.suppress(StoreError):  # its disk is too full, or has failed
            core.store.check_room()
            takes_new = bool(core.topics.permission & PERM_WRITE)  # False if the broker is to be removed
        members = [] if kind == WRITE else directory.members
        return request.response(
            ResponseCode.SUCCESS, {"home": coordinator or "", "takes_new": takes_new, "members": members}
        )

    async def remember(_: ServerConnection, request: Command) -> Command:
        queried = request.fields.get("asked")
        if queried is not None and not (isinstance(queried, list) and all(isinstance(each, str) for each in queried)):
            raise InvalidInput("asked", "a list of brokers", queried)
        entry = text_field(request, "kind"), text_field(request, "key"), text_field(request, "home")
        coordinator = await asyncio.to_thread(directory.remember, *entry, queried)
        return request.response(ResponseCode.SUCCESS, {"home": coordinator})

    async def copy(_: ServerConnection, request: Command) -> Command:
        broker, after = check_broker_name(text_field(request, "broker")), text_field(request, "after")
        if not after:
            await asyncio.to_thread(directory.mark_synced, broker)
        page = await asyncio.to_thread(directory.page, after, _PAGE)
        fields = {"members": directory.members, "homes": [list(each) for each in page.entries], "last": page.last}
        return request.response(ResponseCode.SUCCESS, fields)

    async def forget(_: ServerConnection, request: Command) -> Command:
        was_known = await asyncio.to_thread(directory.forget, check_broker_name(text_field(request, "broker")))
        return request.response(ResponseCode.SUCCESS, {"wasKnown": was_known})

    return guard_target_broker(
        core.name,
        {
            RequestCode.FIND_COORDINATOR: reads_confirmed(find),
            RequestCode.REGISTER_COORDINATOR: changes(remember),
            RequestCode.COPY_COORDINATORS: reads_confirmed(copy),
            RequestCode.FORGET_BROKER: changes(forget),
        },
    )
