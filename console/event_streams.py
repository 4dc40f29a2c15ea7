"""Send events to browsers.

One for each sample of the cluster, and the messages of a live tail.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiohttp import web

from raymq.client import RayMQError, ReceivedMessage
from raymq.console.body_view import preview_body
from raymq.console.console_context import CONTEXT, ConsoleContext
from raymq.console.tail_window import TailWindow

#: Event streams at the same time; each tail has requests parked at the brokers.
_MOST_STREAMS: Final = 64
#: A comment this often finds out that the browser has gone.
_KEEP_ALIVE_SECONDS: Final = 5.0
_TAIL_SECONDS: Final = 0.5


class TooManyStreams(RayMQError):
    """Too many pages of this console are open."""

    remedy = "close some of them"


async def live(request: web.Request) -> web.StreamResponse:
    """Send an event for each sample of the cluster, so that pages refresh themselves."""
    context = request.app[CONTEXT]
    async with _stream(request) as response:
        while not context.ending.is_set():
            try:
                async with asyncio.timeout(_KEEP_ALIVE_SECONDS * 2):
                    sample = await context.sampler.wait_for_next()
            except TimeoutError:
                await response.write(b": still here\n\n")
            else:
                if not context.ending.is_set():
                    await _send(response, "sample", {"at": sample.at, "error": sample.error})
    return response


async def tail(request: web.Request) -> web.StreamResponse:
    """Send a topic's messages from now on, and say what was left out."""
    context = request.app[CONTEXT]
    topic = request.match_info["topic"]
    await context.admin.atopic_config(topic)  # Raises TopicNotFound while an error page can still be sent.
    window, failed = TailWindow(), asyncio.Event()
    async with _stream(request) as response:
        reader = asyncio.create_task(_read(context, topic, window))
        reader.add_done_callback(lambda _: failed.set())
        try:
            quiet = 0.0
            while not context.ending.is_set() and not reader.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TAIL_SECONDS):
                        await failed.wait()
                batch = window.take()
                quiet += _TAIL_SECONDS
                if batch.messages:
                    await _send(
                        response,
                        "messages",
                        {"messages": batch.messages, "too_fast": batch.too_fast, "missing": batch.missing},
                    )
                    quiet = 0.0
                elif quiet >= _KEEP_ALIVE_SECONDS:
                    await response.write(b": still here\n\n")
                    quiet = 0.0
            error = reader.exception() if reader.done() and not reader.cancelled() else None
            if error is not None:
                await _send(response, "failed", {"error": str(error) or repr(error)})
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
    return response


async def _read(context: ConsoleContext, topic: str, window: TailWindow) -> None:
    found = context.admin.atail(topic)
    async for message in found:
        window.put(message.queue, message.queue_offset, tail_row(message))


def tail_row(message: ReceivedMessage) -> dict[str, Any]:
    """Return what the live tail shows of a message."""
    return {
        "message_id": message.message_id,
        "broker": message.queue.broker,
        "queue_id": message.queue.queue_id,
        "offset": message.queue_offset,
        "store_timestamp": message.store_timestamp,
        "keys": message.keys,
        "tags": message.tags,
        "preview": preview_body(message.body),
    }


@contextlib.asynccontextmanager
async def _stream(request: web.Request) -> AsyncIterator[web.StreamResponse]:
    """Open an event stream; it ends quietly where the browser has gone."""
    context = request.app[CONTEXT]
    if context.streams >= _MOST_STREAMS:
        raise TooManyStreams(f"{_MOST_STREAMS} pages are open")
    context.streams += 1
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    try:
        await response.prepare(request)
        await response.write(b"retry: 2000\n\n")
        yield response
    except ConnectionError:
        pass
    finally:
        context.streams -= 1


async def _send(response: web.StreamResponse, event: str, data: Mapping[str, Any]) -> None:
    """Send one event.

    JSON has no line breaks, so a message cannot add events of its own.
    """
    text = json.dumps(data, ensure_ascii=True)
    await response.write(f"event: {event}\ndata: {text}\n\n".encode())
