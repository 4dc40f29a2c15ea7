"""The form for the token, and the end of a session."""

from __future__ import annotations

from aiohttp import web

from raymq.console.access_guard import SESSION_SECONDS
from raymq.console.console_context import CONTEXT
from raymq.console.form_fields import read_fields
from raymq.console.page_rendering import Page, wants_json


async def sign_in_form(request: web.Request) -> Page:
    """Return the form for the token."""
    return _form(request, request.query.get("next", "/"))


def _form(request: web.Request, then: str, *, wrong: bool = False) -> Page:
    signed_in = request.app[CONTEXT].session_of(request) is not None
    data = {"signed_in": signed_in, "next": local_path(then), "wrong": wrong}
    return Page("sign_in", "Token", data, status=401 if wrong else 200)


async def sign_in(request: web.Request) -> Page:
    """Open a session in this browser if the token is right."""
    context = request.app[CONTEXT]
    fields = await read_fields(request)
    then = local_path(fields.text("next"))
    if not context.guard.accepts(fields.text("token").strip()):
        return _form(request, then, wrong=True)
    done = web.HTTPSeeOther("/" if wants_json(request) else then)
    done.set_cookie(
        context.cookie,
        context.sessions.open(),
        max_age=int(SESSION_SECONDS),
        path="/",
        httponly=True,
        samesite="Strict",
    )
    raise done


async def sign_out(request: web.Request) -> Page:
    """End the session of this browser."""
    context = request.app[CONTEXT]
    context.sessions.close(request.cookies.get(context.cookie))
    done = web.HTTPSeeOther("/")
    done.del_cookie(context.cookie, path="/")
    raise done


def local_path(text: str) -> str:
    """Return a path of this console.

    "/" for everything else, such as the address of another site.
    """
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_local else "/"
