"""Serve a name server's configuration: its key-value entries and its own settings."""

from __future__ import annotations

from collections.abc import Callable

from raymq.actors.errors import InvalidInput
from raymq.actors.names.kv_config import KVConfig
from raymq.actors.server_settings import ServerSettings
from raymq.actors.wire import java_properties as properties
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.coordinator_directory_commands import BROKERS_NAMESPACE
from raymq.actors.wire.commands.keeper_commands import REGISTER
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route_headers import DeleteKeyValue, GetKeyValue, GetKeyValues, PutKeyValue
from raymq.actors.wire.server_connection import Handler, ServerConnection


def handlers(entries: KVConfig, settings: ServerSettings, forget: Callable[[str], None]) -> dict[int, Handler]:
    """Return the handlers of configuration requests.

    `forget` is called with the name of a broker that is removed for good.
    """

    def check_may_change(namespace: str) -> None:
        if namespace == REGISTER:  # it names files that this process opens: only a start may set it
            raise InvalidInput("namespace", "not one that only the start of the cluster changes", namespace)

    def put(_: ServerConnection, request: Command) -> Command:
        header = PutKeyValue.read(request)
        check_may_change(header.namespace)
        entries.put(header.namespace, header.key, header.value)
        return request.response(ResponseCode.SUCCESS)

    def get(_: ServerConnection, request: Command) -> Command:
        header = GetKeyValue.read(request)
        return request.response(ResponseCode.SUCCESS, {"value": entries.get(header.namespace, header.key)})

    def delete(_: ServerConnection, request: Command) -> Command:
        header = DeleteKeyValue.read(request)
        check_may_change(header.namespace)
        entries.delete(header.namespace, header.key)
        if header.namespace == BROKERS_NAMESPACE:
            forget(header.key)
        return request.response(ResponseCode.SUCCESS)

    def namespace(_: ServerConnection, request: Command) -> Command:
        return json_body.answer(request, {"table": entries.namespace(GetKeyValues.read(request).namespace)})

    def update_settings(_: ServerConnection, request: Command) -> Command:
        settings.update(properties.read(request.body))
        return request.response(ResponseCode.SUCCESS)

    def get_settings(_: ServerConnection, request: Command) -> Command:
        return request.response(ResponseCode.SUCCESS, body=properties.write(settings.all()))

    return {
        RequestCode.PUT_KV_CONFIG: put,
        RequestCode.GET_KV_CONFIG: get,
        RequestCode.DELETE_KV_CONFIG: delete,
        RequestCode.GET_KVLIST_BY_NAMESPACE: namespace,
        RequestCode.UPDATE_NAMESRV_CONFIG: update_settings,
        RequestCode.GET_NAMESRV_CONFIG: get_settings,
    }
