"""Combine the command families into all commands that a broker serves."""

from __future__ import annotations

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.handlers import (
    admin_handlers,
    append_handlers,
    assignment_handlers,
    backup_handlers,
    coordinator_directory_handlers,
    dead_letter_handlers,
    drain_status_handlers,
    fetch_handlers,
    group_handlers,
    lock_handlers,
    message_state_handlers,
    offset_handlers,
    pop_handlers,
    pull_handlers,
    query_handlers,
    recall_handlers,
    reply_handlers,
    send_back_handlers,
    send_handlers,
    staged_write_handlers,
    stream_plan_handlers,
    transaction_handlers,
)
from raymq.actors.broker.handlers.broker_command import Commands

_FAMILIES = (
    append_handlers,
    staged_write_handlers,
    coordinator_directory_handlers,
    send_handlers,
    send_back_handlers,
    reply_handlers,
    pull_handlers,
    fetch_handlers,
    pop_handlers,
    assignment_handlers,
    group_handlers,
    lock_handlers,
    offset_handlers,
    query_handlers,
    admin_handlers,
    recall_handlers,
    dead_letter_handlers,
    message_state_handlers,
    stream_plan_handlers,
    backup_handlers,
    drain_status_handlers,
    transaction_handlers,
)


def all_commands(context: BrokerContext) -> Commands:
    """Return the command of each request code."""
    return {code: command for family in _FAMILIES for code, command in family.handlers(context).items()}
