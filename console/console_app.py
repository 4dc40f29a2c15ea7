"""The console as an aiohttp application: addresses, access rules, headers and error pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Final

from aiohttp import web

from raymq.client import InvalidInput, MessageNotFound, RayMQError
from raymq.console import (
    dead_letter_pages,
    delayed_page,
    event_streams,
    group_pages,
    message_pages,
    overview_page,
    sign_in_pages,
    topic_pages,
    transaction_pages,
)
from raymq.console.console_context import CONTEXT, ConsoleContext
from raymq.console.error_pages import error_page, http_error_page, refusal_page, unexpected_page
from raymq.console.form_fields import CSRF_FIELD, CSRF_HEADER, read_fields
from raymq.console.page_rendering import (
    HTMX,
    ICON,
    SCRIPT,
    STYLE,
    Page,
    answer,
    prepare_templates,
    wants_json,
)
from raymq.console.write_results import WriteResults

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PageHandler = Callable[[web.Request], Awaitable[Page]]

_RESULTS: Final = web.AppKey("RESULTS", WriteResults)
#: The largest request: a message of 4 MiB in a form's encoding.
_MAX_REQUEST_BYTES: Final = 16 << 20
_FIRST_SAMPLE_SECONDS: Final = 5.0
_CSP: Final = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'; img-src 'self'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with it browsers send "Origin: null" with forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Server": "raymq-console",
}
_CONTENT_TYPES: Final = {HTMX: "text/javascript", SCRIPT: "text/javascript", STYLE: "text/css", ICON: "image/svg+xml"}
#: What needs no token: the form for it, and the static files.
_OPEN_PATHS: Final = ("/sign-in", "/static/")

_PAGES: Final[dict[str, PageHandler]] = {
    "/topics": topic_pages.topic_list,
    "/topics/{topic}": topic_pages.topic,
    "/groups": group_pages.group_list,
    "/groups/{group}": group_pages.group,
    "/groups/{group}/why": group_pages.why,
    "/groups/{group}/dead-letters": dead_letter_pages.dead_letters,
    "/groups/{group}/redrives/{job}": dead_letter_pages.redrive_state,
    "/messages": message_pages.message_search,
    "/messages/{message_id}": message_pages.message,
    "/delayed": delayed_page.delayed,
    "/transactions": transaction_pages.transactions,
}
_WRITES: Final[dict[str, PageHandler]] = {
    "/topics/{topic}/send": topic_pages.send,
    "/groups/{group}/dead-letters/redrive": dead_letter_pages.redrive,
    "/groups/{group}/dead-letters/delete": dead_letter_pages.delete,
    "/delayed/recall": delayed_page.recall,
    "/transactions/commit": transaction_pages.commit,
    "/transactions/rollback": transaction_pages.rollback,
    "/transactions/resume": transaction_pages.resume,
}


def make_app(context: ConsoleContext) -> web.Application:
    """Return the application; it samples the cluster from its start to its end."""
    app = web.Application(middlewares=[_error_pages, _access_rules], client_max_size=_MAX_REQUEST_BYTES)
    app[CONTEXT] = context
    app[_RESULTS] = WriteResults()
    app.on_response_prepare.append(_add_headers)
    app.on_shutdown.append(_end_streams)
    app.cleanup_ctx.append(_sampling)
    for path in ("/", "/overview.json"):
        app.router.add_get(path, _as_response(overview_page.overview))
    for path, handler in _PAGES.items():
        app.router.add_get(f"{path}.json", _as_response(handler))
        app.router.add_get(path, _as_response(handler))
    for path, handler in _WRITES.items():
        app.router.add_post(f"{path}.json", _as_response(handler))
        app.router.add_post(path, _as_write(handler))
        app.router.add_get(path, _to_parent)
    app.router.add_get("/done/{key}.json", _as_response(_done))
    app.router.add_get("/done/{key}", _as_response(_done))
    app.router.add_get("/sign-in", _as_response(sign_in_pages.sign_in_form))
    app.router.add_post("/sign-in", _as_response(sign_in_pages.sign_in))
    app.router.add_post("/sign-out", _as_response(sign_in_pages.sign_out))
    # HEAD of an endless stream is refused: it would never end.
    app.router.add_get("/live", event_streams.live, allow_head=False)
    app.router.add_get("/topics/{topic}/tail", event_streams.tail, allow_head=False)
    app.router.add_get("/static/{file}", _static)
    return app


def _as_response(handler: PageHandler) -> Handler:
    async def respond(request: web.Request) -> web.StreamResponse:
        return answer(request, await handler(request))

    return respond


def _as_write(handler: PageHandler) -> Handler:
    """Answer a form by a redirect to its result, which can be loaded again."""

    async def respond(request: web.Request) -> web.StreamResponse:
        page = await handler(request)
        if wants_json(request):
            return answer(request, page)
        raise web.HTTPSeeOther(page.address or f"/done/{request.app[_RESULTS].keep(page)}")

    return respond


async def _done(request: web.Request) -> Page:
    """Return the result of a write."""
    page = request.app[_RESULTS].get(request.match_info["key"])
    if page is None:
        raise MessageNotFound("this console does not have this result", remedy="it keeps the last ones until it ends")
    return page


async def _to_parent(request: web.Request) -> web.Response:
    """Redirect from the address of a form to the page that has it."""
    raise web.HTTPSeeOther(request.rel_url.parent)


@web.middleware
async def _error_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RayMQError as error:
        return answer(request, error_page(error))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return answer(request, http_error_page(error))
    except ConnectionError:
        raise
    except Exception:  # noqa: BLE001 - it is logged, and a person gets a page
        _log.exception("the page %s failed", request.path)
        return answer(request, unexpected_page())


@web.middleware
async def _access_rules(request: web.Request, handler: Handler) -> web.StreamResponse:
    context = request.app[CONTEXT]
    is_open = request.path.startswith(_OPEN_PATHS)
    refusal = context.guard.check(context.facts_of(request, request.headers.get(CSRF_HEADER), is_open=is_open))
    if refusal is not None and request.method == "POST" and request.cookies.get(context.cookie):
        # The CSRF token of a form is in its body, which is read only for a request that may be a session's own.
        csrf = await _csrf_field(request)
        refusal = context.guard.check(context.facts_of(request, csrf, is_open=is_open))
    if refusal is not None:
        return answer(request, refusal_page(refusal))
    return await handler(request)


async def _csrf_field(request: web.Request) -> str | None:
    try:
        return (await read_fields(request)).text(CSRF_FIELD)
    except InvalidInput:
        return None


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    is_versioned = request.path.startswith("/static/") and response.status == 200 and "v" in request.query
    response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_versioned else "no-store"


async def _static(request: web.Request) -> web.Response:
    name = request.match_info["file"]
    if name not in _CONTENT_TYPES:
        raise web.HTTPNotFound
    content = resources.files("raymq.console").joinpath("static", name).read_bytes()
    return web.Response(body=content, content_type=_CONTENT_TYPES[name], charset="utf-8")


async def _sampling(app: web.Application) -> AsyncIterator[None]:
    """Sample while the application runs.

    Wait a little for the first sample, so that the first page has figures.
    """
    sampler = app[CONTEXT].sampler
    prepare_templates()
    task = asyncio.create_task(sampler.run())
    if sampler.newest.at is None:
        await asyncio.wait([asyncio.create_task(sampler.wait_for_next())], timeout=_FIRST_SAMPLE_SECONDS)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await app[CONTEXT].jobs.close()


async def _end_streams(app: web.Application) -> None:
    app[CONTEXT].ending.set()
    app[CONTEXT].sampler.wake()
