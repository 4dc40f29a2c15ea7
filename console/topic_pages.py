"""The pages of topics.

The list, one topic with its messages, and the form that sends a message.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from aiohttp import web

from raymq.actors.naming import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from raymq.client import InvalidInput, Message
from raymq.client.timestamps import parse_duration, parse_time
from raymq.console.cluster_charts import topic_charts
from raymq.console.cluster_sampler import TopicFigures
from raymq.console.console_context import CONTEXT
from raymq.console.form_fields import Fields, read_fields
from raymq.console.message_listing import MessagePage, messages_at, newest_messages, queue_messages, queue_of
from raymq.console.page_rendering import Page
from raymq.console.paging import PageOf, page_of

#: The time that is shown where only its begin is given.
_WINDOW_SECONDS: Final = 600.0


async def topic_list(request: web.Request) -> Page:
    """Return a page of the topics whose name contains `filter`, with the last sample's figures."""
    context = request.app[CONTEXT]
    wanted, system = request.query.get("filter", ""), request.query.get("system") == "1"
    names = [name for name in await context.admin.atopics(system=system) if wanted.lower() in name.lower()]
    page = page_of(names, request.query.get("page"))
    figures = context.sampler.newest.topics
    sampled = set(await context.admin.atopics()) if system else set(names)
    data = {
        "filter": wanted,
        "system": system,
        **page.as_data(),
        "topics": [{"topic": name, **_figures(figures.get(name))} for name in page.items],
    }
    return Page("topics", "Topics", data, {"sampled": sampled}, "topics")


def _figures(figures: TopicFigures | None) -> dict[str, Any]:
    """Return what the last sample found; all unknown without one."""
    names = ("queues", "messages", "last_store_timestamp", "rate_in", "sampled_at")
    return {name: None if figures is None else getattr(figures, name) for name in names}


async def topic(request: web.Request) -> Page:
    """Return one topic: its queues and a page of its messages."""
    context = request.app[CONTEXT]
    name = request.match_info["topic"]
    admin = context.admin
    stats, config, route = await asyncio.gather(
        admin.atopic_stats(name, skip_silent=True),
        admin.atopic_config(name, skip_silent=True),
        admin.atopic_route(name),
    )
    not_asked = sorted({each.broker for each in route} - {queue.broker for queue in stats})
    query = request.query
    messages: MessagePage
    if query.get("queue", "").rpartition(":")[0] in not_asked:
        messages = MessagePage([], ["the broker of this queue does not answer: its messages cannot be read now"])
    elif query.get("queue"):
        queue = queue_of(stats, name, query["queue"])
        offset = _whole("offset", query["offset"]) if query.get("offset") else None
        messages = await queue_messages(admin, queue, stats, offset)
    elif query.get("from"):
        begin = parse_time("from", query["from"])
        end = parse_time("to", query["to"]) if query.get("to") else min(begin + _WINDOW_SECONDS, time.time() + 1)
        if not_asked:
            messages = MessagePage([], ["a time is looked up on all brokers of the topic: choose a queue meanwhile"])
        else:
            messages = await messages_at(admin, name, begin, end)
    else:
        messages = await newest_messages(admin, name, stats)
        if query.get("offset"):
            messages.notes.append("an offset is one of a queue: choose the queue, too; these are the newest of all")
    queues: PageOf[dict[str, Any]] = page_of(
        [
            {
                "broker": queue.broker,
                "queue_id": queue.queue_id,
                "min_offset": each.min_offset,
                "max_offset": each.max_offset,
                "messages": each.max_offset - each.min_offset,
                "last_store_timestamp": each.last_store_timestamp,
            }
            for queue, each in stats.items()
        ],
        query.get("page"),
    )
    data = {
        "topic": name,
        "config": config,
        **queues.as_data(),
        "queues": queues.items,
        "not_asked": not_asked,
        "message_count": sum(each.max_offset - each.min_offset for each in stats.values()),
        "rate_in": context.sampler.history.newest("rate in", name),
        "messages": messages.messages,
        "notes": messages.notes,
        "older": messages.older,
        "newer": messages.newer,
        "shown": {key: query.get(key, "") for key in ("queue", "offset", "from", "to")},
    }
    view = {
        "charts": topic_charts(context.sampler.history, name, context.clock()),
        "may_send": not is_system_topic(name),
        "queue_names": [f"{queue.broker}:{queue.queue_id}" for queue in stats],
        "dead_letters_of": name.removeprefix(DLQ_PREFIX) if name.startswith(DLQ_PREFIX) else None,
        "retries_of": name.removeprefix(RETRY_PREFIX) if name.startswith(RETRY_PREFIX) else None,
    }
    return Page("topic", f"Topic {name}", data, view, "topics")


async def send(request: web.Request) -> Page:
    """Send the message of the form, and return its position."""
    context = request.app[CONTEXT]
    name = request.match_info["topic"]
    fields = await read_fields(request)
    await context.admin.atopic_config(name)  # Raises TopicNotFound, also where a broker would create the topic.
    delay = fields.text("delay").strip()
    message = Message(
        name,
        fields.text("body").encode(),
        tags=fields.text("tags").strip() or None,
        keys=fields.text("keys").split(),
        properties=_properties(fields),
        deliver_at=time.time() + parse_duration("delay", delay) if delay else None,
    )
    sent = await context.producer.asend(message)
    data = {
        "topic": name,
        "status": sent.status.value,
        "message_id": sent.message_id,
        "unique_key": sent.unique_key,
        "broker": sent.queue.broker,
        "queue_id": sent.queue.queue_id,
        "offset": sent.queue_offset,
        "recall_handle": sent.recall_handle,
    }
    return Page("sent", "Message sent", data, section="topics")


def _properties(fields: Fields) -> dict[str, str]:
    """Return the properties of the form: a line "name=value" each, or a JSON object."""
    given = fields.value("properties")
    if isinstance(given, dict):
        return {str(name): str(value) for name, value in given.items()}
    found = {}
    for line in fields.text("properties").splitlines():
        if line.strip():
            name, is_there, value = line.partition("=")
            if not is_there:
                raise InvalidInput("properties", "a line name=value for each property", line)
            found[name.strip()] = value.strip()
    return found


def _whole(field: str, text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 20:
        raise InvalidInput(field, "a whole number from 0 on", text)
    return int(text)
