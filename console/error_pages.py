"""Turn errors into pages that say what is wrong and what to do."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from raymq.client import (
    BrokerUnavailable,
    InvalidInput,
    MessageExpired,
    NotRecallable,
    OffsetOutOfRange,
    PermissionDenied,
    RayMQError,
    TransactionEnded,
)
from raymq.client.errors import NotFoundError
from raymq.console.access_guard import Refusal
from raymq.console.event_streams import TooManyStreams
from raymq.console.page_rendering import Page
from raymq.console.redrive_jobs import TooManyJobs

#: The first class that fits counts.
_STATUSES: Final[tuple[tuple[type[RayMQError], int], ...]] = (
    (MessageExpired, 410),
    (NotFoundError, 404),
    (OffsetOutOfRange, 404),
    (PermissionDenied, 403),
    (TransactionEnded, 409),
    (NotRecallable, 409),
    (TooManyStreams, 503),
    (TooManyJobs, 503),
    (BrokerUnavailable, 503),
    (InvalidInput, 400),
)
_WORDS: Final = {
    400: "That cannot be done",
    401: "The token is needed",
    403: "Refused",
    404: "Not found",
    409: "Too late",
    410: "Expired",
    421: "Unknown host",
    503: "Unavailable",
}


def error_page(error: RayMQError) -> Page:
    """Return the page of an error of the cluster or of an argument."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 502)
    remedy = error.remedy
    text = str(error)
    if remedy and text.endswith(f" ({remedy})"):
        text = text.removesuffix(f" ({remedy})")
    missing = error.broker if isinstance(error, BrokerUnavailable) else None
    if missing is not None and not remedy:
        remedy = "see the overview for what runs; raymq doctor looks for the cause"
    return _page(status, type(error).__name__, text, remedy, missing=missing)


def refusal_page(refusal: Refusal) -> Page:
    """Return the page of a request that is refused."""
    return _page(refusal.status, "Refused", refusal.reason, refusal.remedy, needs_token=refusal.needs_token)


def http_error_page(error: web.HTTPException) -> Page:
    """Return the page of an address that does not exist, and the like."""
    remedy = "the navigation above leads to every page" if error.status == 404 else ""
    return _page(error.status, error.reason, f"{error.status} {error.reason}", remedy)


def unexpected_page() -> Page:
    """Return the page of a fault of the console itself; the log has its traceback."""
    return _page(500, "InternalError", "the console has failed; its log says where", "load the page again")


def _page(
    status: int, kind: str, text: str, remedy: str, *, missing: str | None = None, needs_token: bool = False
) -> Page:
    data = {"error": kind, "message": text, "remedy": remedy, "missing": missing, "needs_token": needs_token}
    return Page("error", _WORDS.get(status, "Error"), data, status=status)
