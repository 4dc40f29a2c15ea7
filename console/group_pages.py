"""The pages of consumer groups: the list, and one group."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from raymq.actors.naming import RETRY_PREFIX, dlq_topic
from raymq.client import BrokerUnavailable, TopicNotFound
from raymq.client.plain_data import to_plain_data
from raymq.console.cluster_charts import group_charts
from raymq.console.cluster_sampler import GroupFigures, group_figures
from raymq.console.console_context import CONTEXT, ConsoleContext
from raymq.console.group_status import group_status
from raymq.console.page_rendering import Page
from raymq.console.paging import page_of
from raymq.console.svg_chart import trend_line

_FIGURES = (
    *("lag", "lag_partly_unknown", "in_flight", "ready", "oldest_age", "has_members", "owners", "rate_out"),
    *("dead_letters", "sampled_at"),
)


_NAMES_SECONDS: Final = 2.0


async def group_list(request: web.Request) -> Page:
    """Return the groups whose name contains `filter`, with the last sample's figures."""
    context = request.app[CONTEXT]
    wanted = request.query.get("filter", "")
    names = [name for name in await _names(context) if wanted.lower() in name.lower()]
    page = page_of(names, request.query.get("page"))
    known, history, now = context.sampler.newest.groups, context.sampler.history, context.clock()
    data = {
        "filter": wanted,
        **page.as_data(),
        "groups": [{"group": name, **_as_data(known.get(name))} for name in page.items],
    }
    trends = {
        name: trend_line(history.points("lag", name), now, f"lag of {name}, the last hour") for name in page.items
    }
    return Page("groups", "Groups", data, {"trends": trends}, "groups")


async def _names(context: ConsoleContext) -> list[str]:
    """Return all groups' names; those of the last sample if a broker does not answer."""
    newest = context.sampler.newest
    if newest.missing:
        return newest.group_names
    try:
        async with asyncio.timeout(_NAMES_SECONDS):
            return await context.admin.agroups()
    except (TimeoutError, BrokerUnavailable):
        if newest.at is None:
            raise
        return newest.group_names


def _as_data(figures: GroupFigures | None) -> dict[str, Any]:
    """Return the figures and the status of a group; all unknown without a sample."""
    found = {name: None if figures is None else getattr(figures, name) for name in _FIGURES}
    return {**found, "status": group_status(figures)}


async def group(request: web.Request) -> Page:
    """Return one group: its figures, and its queues with their owners."""
    context = request.app[CONTEXT]
    name = request.match_info["group"]
    progress, dead_letters = await asyncio.gather(context.admin.agroup_progress(name), _dead_letters(context, name))
    sampled = context.sampler.newest.groups.get(name)
    figures = group_figures(progress, None if sampled is None else sampled.rate_out, dead_letters, context.clock())
    queues = page_of(
        [
            {"topic": queue.topic, "broker": queue.broker, "queue_id": queue.queue_id, "progress": each}
            for queue, each in sorted(progress.items(), key=lambda item: item[0].topic.startswith(RETRY_PREFIX))
        ],
        request.query.get("page"),
    )
    data = {
        "group": name,
        **_as_data(figures),
        "missing_topics": progress.missing_topics,
        **queues.as_data(),
        "queues": queues.items,
    }
    return Page(
        "group",
        f"Group {name}",
        data,
        {"charts": group_charts(context.sampler.history, name, context.clock())},
        "groups",
    )


async def why(request: web.Request) -> Page:
    """Return why a group does not move, and what its members do.

    It takes about two seconds.
    """
    name = request.match_info["group"]
    admin = request.app[CONTEXT].admin
    found, members = await asyncio.gather(admin.aexplain_group(name), admin.agroup_members(name))
    slowest_first = sorted(members, key=lambda member: -(member.longest_call or 0.0))
    data = {**to_plain_data(found), "members": slowest_first}
    return Page("why", f"Why {name} moves or not", data, section="groups")


async def _dead_letters(context: ConsoleContext, group: str) -> int | None:
    """Return the entries of the dead-letter queue, None if unknown.

    Those that were redriven or deleted count, too.
    """
    try:
        stats = await context.admin.atopic_stats(dlq_topic(group), skip_silent=True)
    except TopicNotFound:
        return 0
    except BrokerUnavailable:
        return None
    return sum(queue.max_offset - queue.min_offset for queue in stats.values())
