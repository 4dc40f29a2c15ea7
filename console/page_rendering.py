"""Answer a page as HTML or as JSON from one set of data.

A page's handler returns a `Page`. `Accept: application/json`, or a path that ends in `.json`, gets its data; everyone
else gets the template with the same data. Templates escape everything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from raymq.client.plain_data import to_plain_data
from raymq.client.timestamps import format_duration
from raymq.console.console_context import CONTEXT, ConsoleContext

HTMX: Final = "htmx-2.0.11.min.js"
STYLE: Final = "console.css"
SCRIPT: Final = "console.js"
ICON: Final = "icon.svg"
_UNKNOWN: Final = Markup('<span class="unknown">unknown</span>')
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Page:
    """What a handler found.

    Attributes:
        template: its file without `.html`.
        data: the JSON of the page, which the template has, too.
        view: what only the template needs, such as charts.
        section: the entry of the navigation that is marked.
        address: where a write's result is found by GET; "": it has no page of its own.
    """

    template: str
    title: str
    data: Mapping[str, Any]
    view: Mapping[str, Any] = field(default_factory=dict)
    section: str = ""
    status: int = 200
    address: str = ""


def wants_json(request: web.Request) -> bool:
    """Return True if a request asks for JSON by its path or its header."""
    if request.path.endswith(".json"):
        return True
    accepted = request.headers.get("Accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def answer(request: web.Request, page: Page) -> web.Response:
    """Return a page as HTML or JSON."""
    data = to_plain_data(page.data)
    if wants_json(request):
        return web.Response(
            text=json.dumps(data, ensure_ascii=False, allow_nan=False, default=_json_value),
            content_type="application/json",
            status=page.status,
        )
    context = request.app[CONTEXT]
    text = (
        _environment()
        .get_template(f"{page.template}.html")
        .render({**_frame(request, context, page), **data, **page.view})
    )
    return web.Response(text=text, content_type="text/html", status=page.status)


def _json_value(value: object) -> str:
    """Return bytes as base64, and anything else that JSON lacks as text."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


def _frame(request: web.Request, context: ConsoleContext, page: Page) -> dict[str, Any]:
    """Return what the frame around every page needs."""
    session = context.session_of(request)
    sample = context.sampler.newest
    is_hidden = context.guard.reads_need_token and session is None  # Strangers do not see what the cluster has.
    return {
        "title": page.title,
        "section": page.section,
        # The address of a form is no page: the one with the form is above it.
        "here": str(request.rel_url.parent if request.method == "POST" else request.rel_url),
        "now": context.clock(),
        "csrf": session.csrf if session is not None else "",
        "signed_in": session is not None,
        "can_write": context.guard.may_write and session is not None,
        "may_write": context.guard.may_write,
        "listens_beyond_loopback": context.guard.reads_need_token,
        "sample_at": sample.at,
        "sample_error": None if is_hidden else sample.error,
        "missing_brokers": [] if is_hidden else sample.missing,
        "json_url": _json_url(request) if page.section and request.method == "GET" else None,
        "assets": _asset_urls(),
    }


def prepare_templates() -> None:
    """Compile all templates, so that the first page is as quick as the others."""
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)


def _json_url(request: web.Request) -> str:
    path = "/overview" if request.rel_url.raw_path == "/" else request.rel_url.raw_path
    query = request.rel_url.raw_query_string
    return f"{path}.json" + (f"?{query}" if query else "")


_made: list[Environment] = []
_urls: dict[str, str] = {}


def _environment() -> Environment:
    if not _made:
        made = Environment(
            loader=PackageLoader("raymq.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        made.filters |= {
            "path": path_part,
            "number": show_number,
            "rate": show_rate,
            "age": show_age,
            "size": show_size,
            "percent": show_percent,
            "when": show_when,
            "or_unknown": or_unknown,
        }
        _made.append(made)
    return _made[0]


def _asset_urls() -> dict[str, str]:
    """Return the URLs of the static files, which change with their content."""
    if not _urls:
        for name in (HTMX, STYLE, SCRIPT, ICON):
            content = resources.files("raymq.console").joinpath("static", name).read_bytes()
            kind = "htmx" if name == HTMX else name.rpartition(".")[2]
            _urls[kind] = f"/static/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"
    return _urls


def path_part(name: object) -> str:
    """Return a name as one part of a URL's path."""
    return quote(str(name), safe="")


def or_unknown(value: object) -> object:
    """Return a value, or the word "unknown" in its own style."""
    return _UNKNOWN if value is None else value


def show_number(value: float | None) -> str | Markup:
    """Return a count with separators."""
    return _UNKNOWN if value is None else f"{value:,.0f}"


def show_rate(value: float | None) -> str | Markup:
    """Return messages per second."""
    return _UNKNOWN if value is None else f"{rate_text(value)}/s"


def rate_text(value: float) -> str:
    """Return a rate without its unit, with two or three digits."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def show_age(value: float | None) -> str | Markup:
    """Return a time span; below a second with one digit."""
    if value is None:
        return _UNKNOWN
    return f"{value:.1f} s" if 0 < value < 1 else format_duration(value)


def size_text(value: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in _SIZES:
        if value < 1024 or unit == _SIZES[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError


def show_size(value: float | None) -> str | Markup:
    """Return a number of bytes with a unit."""
    return _UNKNOWN if value is None else size_text(value)


def show_percent(value: float | None) -> str | Markup:
    """Return a ratio in percent."""
    return _UNKNOWN if value is None else f"{value:.0%}"


def show_when(value: float | None) -> Markup:
    """Return a point in time in UTC; "never" for 0."""
    if value is None:
        return _UNKNOWN
    if not value:
        return Markup("never")
    try:
        moment = datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return escape(str(value))
    exact = moment.isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, f"{moment:%Y-%m-%d %H:%M:%S} UTC")
