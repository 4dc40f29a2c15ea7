"""Combine the command families for administration."""

from __future__ import annotations

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.handlers import admin_broker, admin_clients, admin_groups, admin_offsets, admin_topics
from raymq.actors.wire.server_connection import Handler


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """Return the handlers of these families by request code."""
    families = (admin_topics, admin_groups, admin_offsets, admin_clients, admin_broker)
    return {code: handler for family in families for code, handler in family.handlers(context).items()}
