"""Create, change, list and delete consumer groups.

A group may also be forbidden a topic, and its progress in a topic deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import asdict

from raymq.actors.broker.context import BrokerContext, text_field
from raymq.actors.broker.core.groups.group_remover import GroupRemover
from raymq.actors.broker.handlers.admin_topics import MAX_LISTED
from raymq.actors.broker.handlers.broker_command import Commands, changes, reads
from raymq.actors.errors import InvalidInput
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.admin_headers import (
    DeleteSubscriptionGroup,
    GetSubscriptionGroupConfig,
    UpdateAndGetGroupForbidden,
)
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import coalescing_handler, steps_handler, stepwise
from raymq.storage.cooperative_steps import Steps


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    groups = context.core.group_settings

    async def update(_: ServerConnection, request: Command) -> Command:
        new_topics = groups.change([json_body.read_object(request.body)])
        await context.settings_durable()
        if new_topics:
            await context.announce()
        return request.response(ResponseCode.SUCCESS)

    async def update_many(_: ServerConnection, request: Command) -> Command:
        configs = json_body.read_object(request.body).get("groupConfigList")
        if not isinstance(configs, list) or not all(isinstance(item, dict) for item in configs):
            raise InvalidInput("groupConfigList", "a list of JSON objects", configs)
        if len(configs) > MAX_LISTED:
            raise InvalidInput("groupConfigList", f"at most {MAX_LISTED} groups", len(configs))
        new_topics = await stepwise(groups.change_steps(configs))
        await context.settings_durable()
        if new_topics:
            await context.announce()
        return request.response(ResponseCode.SUCCESS)

    async def delete(_: ServerConnection, request: Command) -> Command:
        header = DeleteSubscriptionGroup.read(request)
        groups.delete(header.group_name, with_offsets=header.clean_offset)
        if header.clean_offset:
            context.core.pop.forget_group(header.group_name)
        context.statistics.forget_group(header.group_name)
        await context.settings_durable()
        return request.response(ResponseCode.SUCCESS)

    def all_configs(_: ServerConnection, request: Command) -> Steps[Command]:
        yield None  # equal requests share one answer
        configs = context.core.store.group_configs
        body = {
            "dataVersion": configs.version.to_json(),
            "forbiddenTable": configs.forbidden,
            "subscriptionGroupTable": {name: config.to_json() for name, config in groups.all().items()},
        }
        return json_body.answer(request, body)

    def config(_: ServerConnection, request: Command) -> Command:
        # RocketMQ creates a missing group here, and its proxy depends on that.
        return json_body.answer(
            request, context.core.make_group(GetSubscriptionGroupConfig.read(request).group).to_json()
        )

    async def forbidden(_: ServerConnection, request: Command) -> Command:
        header = UpdateAndGetGroupForbidden.read(request)
        if header.readable is not None:
            groups.set_readable(header.group, header.topic, header.readable)
            await context.settings_durable()
        readable = groups.can_read(header.group, header.topic)
        return json_body.answer(request, {"group": header.group, "readable": readable, "topic": header.topic})

    return {
        **_deletions(context),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: changes(update),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: changes(update_many),
        RequestCode.DELETE_SUBSCRIPTIONGROUP: changes(delete),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: reads(coalescing_handler(all_configs)),
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: reads(config),
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: changes(forbidden),
    }


def _deletions(context: BrokerContext) -> Commands:
    """Return RayMQ's own commands: delete a whole group, or its progress in one topic."""
    deletion = GroupRemover(context.core, context.groups)

    def delete_whole(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        group = text_field(request, "group")
        content = yield from deletion.content(group)
        answer = request.response(ResponseCode.SUCCESS, asdict(content))
        if request.fields.get("dry_run"):
            return answer
        deletion.delete(group, dead_letters=bool(request.fields.get("dead_letters")))
        context.statistics.forget_group(group)

        async def settled() -> Command:
            await context.settings_durable()
            await context.announce()
            return answer

        return settled()

    async def forget_topic(_: ServerConnection, request: Command) -> Command:
        count = deletion.forget_topic(text_field(request, "group"), text_field(request, "topic"))
        await context.settings_durable()
        return request.response(ResponseCode.SUCCESS, {"offsets": count})

    return {
        RequestCode.DELETE_GROUP: changes(steps_handler(delete_whole)),
        RequestCode.FORGET_GROUP_TOPIC: changes(forget_topic),
    }
