"""Report what is left on the broker (RayMQ's own); `raymq broker drain` waits for it."""

from __future__ import annotations

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.drain_status import DrainStatus
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats
from raymq.actors.broker.handlers.broker_command import Commands, reads
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.drain_commands import (
    MAX_LISTED_ENTRIES,
    DrainBacklog,
    consumption_answer,
    drain_backlog_answer,
    is_consumption_request,
)
from raymq.actors.wire.commands.target_broker import check_target_broker
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import coalescing_handler
from raymq.storage.cooperative_steps import Steps


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core = context.core
    remaining = DrainStatus(core, context.groups, ConsumeStats(core, context.groups, context.statistics))

    def left(_: ServerConnection, request: Command) -> Steps[Command]:
        check_target_broker(core.name, request)
        if is_consumption_request(request):
            return consumption_answer(request, (yield from remaining.consumed()))
        on_disk: list[int] = []

        def look() -> None:
            on_disk[:] = core.coordinators.count_own(), core.staging.table.count_open()

        yield look
        unconsumed = yield from remaining.unconsumed()
        dead_letters = yield from remaining.dead_letters()
        timers = yield from core.timers.count_steps()
        lent = remaining.lent()
        backlog = DrainBacklog(
            unconsumed=dict(list(unconsumed.items())[:MAX_LISTED_ENTRIES]),
            unconsumed_messages=sum(unconsumed.values()),
            delayed=core.schedule.waiting,
            timers=timers,
            lent=sum(lent.values()),
            staged=on_disk[1],
            writes=core.writes.open_count,
            homes=on_disk[0],
            dead_letters=dict(list(dead_letters.items())[:MAX_LISTED_ENTRIES]),
            lent_to=dict(list(lent.items())[:MAX_LISTED_ENTRIES]),
        )
        return drain_backlog_answer(request, backlog)

    return {RequestCode.REMAINS: reads(coalescing_handler(left))}
