"""Handle heartbeats, member lists and notifications of changes, in RocketMQ's formats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.groups.client_registry import ClientRegistry, ConsumerData
from raymq.actors.broker.handlers.broker_command import Commands, reads
from raymq.actors.errors import GroupNotFound, InvalidInput, ServerBusy
from raymq.actors.filter.tag_expression import ALL, TAG, Subscription
from raymq.actors.naming import check_group
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group_headers import GetConsumerListByGroup, HeartBeat, UnregisterClient
from raymq.actors.wire.json_body import answer, read_object, require_text
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import coalescing_handler
from raymq.storage.cooperative_steps import Steps, map_steps

#: Fields of every heartbeat's answer: the second heartbeat form is understood; bodies without subscriptions are not
#: wanted, so that a restarted broker has all subscriptions from the first heartbeat on.
_HEARTBEAT_FORMS = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
#: A Java client requests the route of its retry topic in its first rebalance, and consumes the topic from the next one
#: on. So the first member of a group is not notified before it has sent a heartbeat to all brokers, which then create
#: the topic. It is notified these times later, instead of rebalancing on its own 20 s later.
_LATE_NOTICES_SECONDS = (2.0, 5.0)
#: So many consumers or producers of one heartbeat are registered in one step.
_CONSUMERS_AT_ONCE = 200
_PRODUCERS_AT_ONCE = 1_000
#: Fewer new groups: each is written to disk, with its retry topic.
_NEW_GROUPS_AT_ONCE = 10
#: Members of so many groups are notified at once, and those of the next ones `_NOTICES_SECONDS` later.
_NOTICES_AT_ONCE = 50
_NOTICES_SECONDS = 0.01


def register_client(groups: ClientRegistry, client_id: str, connection: ServerConnection, request: Command) -> None:
    """Register a client that sent a request over this connection.

    From now on the broker notices the end of the connection.
    """
    if groups.register_client(client_id, connection, request.language, request.version):
        connection.add_close_callback(partial(groups.connection_closed, connection))


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    return {**_membership(context), **_questions(context)}


def _membership(context: BrokerContext) -> Commands:
    core, groups = context.core, context.groups

    def heartbeat(connection: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        return _heartbeat(context, connection, request)

    def unregister(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        yield from ()
        header = UnregisterClient.read(request)
        if header.producer_group is not None:
            groups.unregister_producer(header.client_id, header.producer_group)
        group = header.consumer_group
        if group is not None and groups.unregister_consumer(header.client_id, group):
            core.locks.leave(group, header.client_id)
            context.notify_group(group)
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.HEART_BEAT: reads(context.in_order.claim(heartbeat)),
        RequestCode.UNREGISTER_CLIENT: reads(context.in_order.release(unregister)),
    }


def _heartbeat(
    context: BrokerContext, connection: ServerConnection, request: Command
) -> Steps[Command | Awaitable[Command]]:
    core, groups = context.core, context.groups
    data = read_object(request.body)
    client_id = str(data.get("clientID") or "")
    if not client_id:
        raise InvalidInput("clientID", "a client id", client_id)
    strict = HeartBeat.read(request).strict
    consumer_items = _objects(data, "consumerDataSet")
    consumers = yield from map_steps(lambda each: _consumer(each, data), consumer_items, _CONSUMERS_AT_ONCE)
    producers = [str(item.get("groupName") or "") for item in _objects(data, "producerDataSet")]
    register_client(groups, client_id, connection, request)
    newest = groups.connection_of(client_id)
    new_retry_topics: list[str] = []
    try:
        for number, group in enumerate(filter(None, producers)):
            if number and number % _PRODUCERS_AT_ONCE == 0:
                yield None
                _check_newest(groups, client_id, newest)
            groups.register_producer(client_id, group)
        for number, consumer in enumerate(consumers, 1):
            if number % _CONSUMERS_AT_ONCE == 0:
                yield None
                _check_newest(groups, client_id, newest)
            is_new = core.ensure_group(consumer.group)  # first: a group that is not allowed gets no members
            changed = groups.register_consumer(client_id, consumer, strict=strict)
            if is_new:
                new_retry_topics.append(consumer.group)
                if len(new_retry_topics) % _NEW_GROUPS_AT_ONCE == 0:
                    yield None
                    _check_newest(groups, client_id, newest)
            elif changed:
                context.notify_group(consumer.group)
    finally:
        _notify_later(context, new_retry_topics)  # also if an error ends the loop: for the groups created so far
    done = request.response(ResponseCode.SUCCESS, dict(_HEARTBEAT_FORMS))
    return _announced(context, done) if new_retry_topics else done


def _check_newest(groups: ClientRegistry, client_id: str, newest: object | None) -> None:
    """Raise ServerBusy if the client has meanwhile sent a heartbeat over a newer connection."""
    if groups.connection_of(client_id) is not newest:
        raise ServerBusy(f"{client_id} has sent newer data over another connection")


def _notify_later(context: BrokerContext, new_retry_topics: Sequence[str]) -> None:
    """Notify the members of new groups later; see `_LATE_NOTICES_SECONDS`."""

    def notify(names: Iterable[str]) -> None:
        for name in names:
            context.notify_group(name)

    for number, first in enumerate(range(0, len(new_retry_topics), _NOTICES_AT_ONCE)):
        some = new_retry_topics[first : first + _NOTICES_AT_ONCE]
        for seconds in _LATE_NOTICES_SECONDS:
            asyncio.get_running_loop().call_later(seconds + number * _NOTICES_SECONDS, notify, some)


async def _announced(context: BrokerContext, done: Command) -> Command:
    await context.announce()
    return done


def _questions(context: BrokerContext) -> Commands:
    groups = context.groups

    def members(_: ServerConnection, request: Command) -> Command:
        header = GetConsumerListByGroup.read(request)
        try:
            found = groups.members(header.consumer_group)
        except GroupNotFound as error:
            refusal = error_codec.error_response(request, error)
            refusal.code = ResponseCode.SYSTEM_ERROR  # RocketMQ's code for a group without members
            return refusal
        fields: dict[str, Any] = {"consumerIdList": found}
        if header.waits_for:
            fields["raymqWaitsFor"] = sorted(groups.waits_for(header.consumer_group))
        if header.owners:
            owned = groups.owners(header.consumer_group).items()
            fields["raymqOwners"] = [
                [topic, context.core.name, queue_id, owner.client_id] for (topic, queue_id), owner in owned
            ]
        return answer(request, fields)

    def check_client(_: ServerConnection, request: Command) -> Steps[Command]:
        subscription_data = read_object(request.body).get("subscriptionData")
        if isinstance(subscription_data, dict):
            yield from _subscription(subscription_data).parse_filter_steps()  # raises the error that the client gets
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: reads(members),
        RequestCode.CHECK_CLIENT_CONFIG: reads(coalescing_handler(check_client)),
    }


def _objects(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects of a list in the body; an absent list is empty."""
    items = data.get(name) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidInput(name, "a list of objects", items)
    return items


def _consumer(data: Mapping[str, Any], heartbeat: Mapping[str, Any]) -> ConsumerData:
    """Return one consumer of a heartbeat's body."""
    subscriptions = None
    if not heartbeat.get("withoutSub"):
        items = [_subscription(item) for item in _objects(data, "subscriptionDataSet")]
        subscriptions = {item.topic: item for item in items}
    return ConsumerData(
        check_group(require_text(data, "groupName")),
        subscriptions,
        consume_type=str(data.get("consumeType") or "CONSUME_PASSIVELY"),
        message_model=str(data.get("messageModel") or "CLUSTERING"),
        consume_from_where=str(data.get("consumeFromWhere") or "CONSUME_FROM_LAST_OFFSET"),
        waits_for=frozenset(_texts(data, "raymqWaitsFor")),
        version=_version(data),
    )


def _version(data: Mapping[str, Any]) -> int | None:
    version = data.get("raymqSubscriptionVersion")
    if version is not None and (type(version) is not int or not 0 <= version < 1 << 31):
        raise InvalidInput("raymqSubscriptionVersion", "a whole number of 31 bits", version)
    return version


def _texts(data: Mapping[str, Any], name: str) -> list[str]:
    items = data.get(name) or []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise InvalidInput(name, "a list of texts", items)
    return items


def _subscription(data: Mapping[str, Any]) -> Subscription:
    """Return the subscription in RocketMQ's SubscriptionData."""
    version = data.get("subVersion") or 0
    if not isinstance(version, int) or not -(1 << 63) <= version < 1 << 63:
        raise InvalidInput("subVersion", "a whole number of 64 bits", version)
    expression, kind = data.get("subString") or ALL, data.get("expressionType") or TAG
    return Subscription(str(data.get("topic") or ""), str(expression), str(kind), version)
