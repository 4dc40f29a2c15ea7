"""What is left on the broker (ours): what `raymq broker drain` waits for."""

from __future__ import annotations

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.groups.consumption import Consumption
from raymq.actors.broker.core.remaining import Remaining
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.meant import check_meant_for
from raymq.actors.wire.commands.remains import (
    MOST_TOLD,
    Leftovers,
    asks_for_consumption,
    consumption_answer,
    remains_answer,
)
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.actors.wire.stepwise import question
from raymq.storage.steps import Steps


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core = context.core
    remaining = Remaining(core, context.groups, Consumption(core, context.groups, context.statistics))

    def left(_: ServerConnection, request: Command) -> Steps[Command]:
        check_meant_for(core.name, request)
        if asks_for_consumption(request):
            return consumption_answer(request, (yield from remaining.consumed()))
        on_disk: list[int] = []

        def look() -> None:
            on_disk[:] = remaining.homes(), core.staging.count_under_way()

        yield look
        unconsumed = yield from remaining.unconsumed()
        dead_letters = yield from remaining.dead_letters()
        timers = yield from core.timers.counting()
        lent = remaining.lent()
        told = Leftovers(
            unconsumed=dict(list(unconsumed.items())[:MOST_TOLD]),
            unconsumed_messages=sum(unconsumed.values()),
            delayed=core.schedule.waiting,
            timers=timers,
            lent=sum(lent.values()),
            staged=on_disk[1],
            writes=core.writes.under_way,
            homes=on_disk[0],
            dead_letters=dict(list(dead_letters.items())[:MOST_TOLD]),
            lent_to=dict(list(lent.items())[:MOST_TOLD]),
        )
        return remains_answer(request, told)

    return {RequestCode.REMAINS: question(left)}
