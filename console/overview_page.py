"""The page that shows how the cluster does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from raymq.console.cluster_charts import cluster_charts
from raymq.console.cluster_sampler import GroupFigures
from raymq.console.console_context import CONTEXT
from raymq.console.group_status import group_status
from raymq.console.page_rendering import Page

_GROUPS_SHOWN: Final = 8
#: The levels of groups that are listed, in their order.
_ORDER: Final = {"bad": 0, "unknown": 1, "busy": 2}


async def overview(request: web.Request) -> Page:
    """Return the last sample's brokers, totals and groups that need a look."""
    context = request.app[CONTEXT]
    sample, history = context.sampler.newest, context.sampler.history
    cluster = sample.cluster
    watched = backlog(sample.groups)
    data = {
        "sampled_at": sample.at,
        "error": sample.error,
        "brokers": [] if cluster is None else cluster.brokers,
        "name_servers": [] if cluster is None else cluster.name_servers,
        "keepers": [] if cluster is None else cluster.keepers,
        "scheduler": None if cluster is None else cluster.scheduler,
        "topics": None if sample.at is None else len(sample.topic_names),
        "groups": None if sample.at is None else len(sample.group_names),
        "rate_in": history.newest("rate in"),
        "rate_out": history.newest("rate out"),
        "lag": sample.lag,
        "lag_partly_unknown": sample.lag_partly_unknown,
        "oldest_age": history.newest("age"),
        "missing": sample.missing,
        "watched_groups": [
            {
                "group": name,
                "status": group_status(each),
                "lag": each.lag,
                "lag_partly_unknown": each.lag_partly_unknown,
                "oldest_age": each.oldest_age,
            }
            for name, each in watched[:_GROUPS_SHOWN]
        ],
        "watched_groups_total": len(watched),
    }
    return Page("overview", "Overview", data, {"charts": cluster_charts(history, context.clock())}, "overview")


def backlog(groups: Mapping[str, GroupFigures]) -> list[tuple[str, GroupFigures]]:
    """Return the groups that need a look.

    First those that do not move, then by age.
    """

    def rank(item: tuple[str, GroupFigures]) -> tuple[int, float, str]:
        name, figures = item
        return _ORDER[group_status(figures).level], -(figures.oldest_age or 0.0), name

    return sorted((item for item in groups.items() if group_status(item[1]).level in _ORDER), key=rank)
