"""Decide whether the console answers a request.

By its host, its origin, the token and the CSRF token.

Plain decisions over the facts of a request, without I/O.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from raymq.actors.errors import InvalidInput

_HOST_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?")
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_BEARER: Final = "Bearer "
#: A session ends this long after the token was entered.
SESSION_SECONDS: Final = 12 * 3_600.0
_MAX_SESSIONS: Final = 100


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the decision depends on. A header that is missing is None.

    Attributes:
        is_open: the page needs no token: the form for the token, the style sheet.
        session: the value of the session's cookie.
        csrf: the CSRF token of the form or the header.
    """

    method: str
    host: str | None
    origin: str | None = None
    fetch_site: str | None = None
    authorization: str | None = None
    session: str | None = None
    csrf: str | None = None
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused.

    Attributes:
        needs_token: the token would help.
    """

    status: int
    reason: str
    remedy: str
    needs_token: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """A browser in which the token was entered."""

    csrf: str
    ends_at: float


class Sessions:
    """The sessions of this process: they end with it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_id: dict[str, Session] = {}

    def open(self) -> str:
        """Return the id of a new session.

        The oldest one ends if there are too many.
        """
        while len(self._by_id) >= _MAX_SESSIONS:
            self._by_id.pop(next(iter(self._by_id)))
        session_id = secrets.token_urlsafe(32)
        self._by_id[session_id] = Session(secrets.token_urlsafe(32), self._clock() + SESSION_SECONDS)
        return session_id

    def get(self, session_id: str | None) -> Session | None:
        """Return a session that has not ended; None if there is none."""
        session = self._by_id.get(session_id) if session_id else None
        if session is not None and session.ends_at <= self._clock():
            self.close(session_id)
            return None
        return session

    def close(self, session_id: str | None) -> None:
        """End a session."""
        self._by_id.pop(session_id or "", None)


class AccessGuard:
    """The rules of one console.

    Reads need the token only if other machines reach the console: see `is_public`. Writes always need it.
    """

    def __init__(
        self,
        bound_host: str,
        allowed_hosts: Collection[str],
        token: str | None,
        sessions: Sessions,
        own_names: Iterable[str] = (),
    ) -> None:
        """Create the rules; without a token nothing can be written.

        Args:
            bound_host: the address or name that the console listens on.
            allowed_hosts: further names in the header Host.
            own_names: the machine's names, which are allowed in this header, too.

        Raises:
            InvalidInput: an allowed host is no name or address.
        """
        own = {name.lower() for name in own_names}
        self._hosts = _LOCAL_NAMES | {bound_host.lower()} | own | set(map(checked_host, allowed_hosts))
        self._token = token
        self._sessions = sessions
        self.reads_need_token = is_public(bound_host, allowed_hosts)
        self.may_write = token is not None

    def check(self, facts: RequestFacts) -> Refusal | None:
        """Return why a request is refused; None if it is answered."""
        return self._check_site(facts) or self._check_token(facts)

    def accepts(self, token: str) -> bool:
        """Return True if this is the console's token."""
        return self._token is not None and _is_same(token, self._token)

    def _check_site(self, facts: RequestFacts) -> Refusal | None:
        """Refuse what another site has sent, and names that another site's DNS may point here."""
        if _host_name(facts.host) not in self._hosts:
            return Refusal(
                421,
                f"this console does not answer for the host {facts.host!r}",
                "use the address that the console printed, or allow the name: `raymq console --allowed-host NAME`, or "
                "console_allowed_hosts in the cluster's configuration",
            )
        is_write = facts.method not in _SAFE_METHODS
        if facts.origin is not None and not _is_origin_of(facts.origin, facts.host):
            return Refusal(403, f"the request comes from {facts.origin!r}", "open the console itself in the browser")
        if is_write and facts.fetch_site not in (None, "same-origin", "none"):
            return Refusal(403, "the request comes from another site", "open the console itself in the browser")
        return None

    def _check_token(self, facts: RequestFacts) -> Refusal | None:
        if facts.is_open:
            return None
        is_write = facts.method not in _SAFE_METHODS
        if is_write and not self.may_write:
            return Refusal(
                403, "this console only reads", "start it with --token-file FILE; the token in that file allows writes"
            )
        if not is_write and not self.reads_need_token:
            return None
        if self._has_bearer_token(facts):
            return None
        session = self._sessions.get(facts.session)
        if session is None:
            return Refusal(
                401,
                "this needs the token",
                "enter the token of the token file, or send it as the header Authorization: Bearer TOKEN",
                needs_token=True,
            )
        if is_write and not _is_same(facts.csrf or "", session.csrf):
            return Refusal(
                403, "the form is from another session or has no CSRF token", "load the page again, and repeat it"
            )
        return None

    def _has_bearer_token(self, facts: RequestFacts) -> bool:
        header = facts.authorization or ""
        return header.startswith(_BEARER) and self.accepts(header.removeprefix(_BEARER).strip())


def _is_same(given: str, secret: str) -> bool:
    """Compare texts in a time that tells nothing.

    Headers that are not UTF-8 have lone surrogates.
    """
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode("utf-8", "surrogatepass"))


def is_public(bound_host: str, allowed_hosts: Iterable[str]) -> bool:
    """Return True if other machines reach the console, directly or through a proxy."""
    return not all(map(is_loopback, (bound_host, *map(checked_host, allowed_hosts))))


def checked_host(name: str, field: str = "allowed_hosts") -> str:
    """Return an allowed host in the form in which the header Host is compared.

    Raises:
        InvalidInput: it is neither a host name nor an address.
    """
    bare = name.removeprefix("[").removesuffix("]").removesuffix(".").lower()
    if ":" in bare:
        with contextlib.suppress(ValueError):
            ipaddress.IPv6Address(bare)
            return bare
    elif _HOST_NAME.fullmatch(bare):
        return bare
    raise InvalidInput(field, "host names or addresses, without scheme, port or wildcard", name)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches a server on this address or name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(host: str | None) -> str | None:
    """Return the name or address in a Host header, without the port, in lower case."""
    try:
        name = urlsplit(f"//{host}").hostname if host else None
    except ValueError:
        return None
    return name.rstrip(".") if name else None


def _is_origin_of(origin: str, host: str | None) -> bool:
    """Return True if an Origin header names the server that the Host header names."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and host is not None and parts.netloc.lower() == host.lower()
