"""Combine the command families for administration."""

from __future__ import annotations

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.handlers import admin_broker, admin_clients, admin_groups, admin_offsets, admin_topics
from raymq.actors.broker.handlers.broker_command import Commands


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of these families by request code."""
    families = (admin_topics, admin_groups, admin_offsets, admin_clients, admin_broker)
    return {code: command for family in families for code, command in family.handlers(context).items()}
