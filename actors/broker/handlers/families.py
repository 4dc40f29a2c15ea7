"""All commands that a broker serves: the families, put together."""

from __future__ import annotations

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.handlers import (
    admin,
    append,
    append_one,
    assignment,
    backup,
    dead_letters,
    fetch,
    group,
    homes,
    lock,
    offset,
    pop,
    pull,
    query,
    recall,
    remains,
    reply,
    send,
    send_back,
    staging,
    streams,
)
from raymq.actors.wire.server_connection import Handler

_FAMILIES = (
    append,
    append_one,
    staging,
    homes,
    send,
    send_back,
    reply,
    pull,
    fetch,
    pop,
    assignment,
    group,
    lock,
    offset,
    query,
    admin,
    recall,
    dead_letters,
    streams,
    backup,
    remains,
)


def all_handlers(context: BrokerContext) -> dict[int, Handler]:
    """What answers each request code."""
    return {code: handler for family in _FAMILIES for code, handler in family.handlers(context).items()}
