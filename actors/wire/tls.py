"""TLS contexts for asyncio, made from a `Tls` and reloaded when its files change.

A certificate is renewed by replacing its files: the next handshake uses the new files, and open connections stay. If
the files cannot be used yet, such as a new certificate beside the old key, the former context stays in use.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import Tls

#: The shortest time between two checks whether the files have changed.
RELOAD_CHECK_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class ReloadingContext:
    """A TLS context that follows changes of its files. Thread-safe."""

    def __init__(self, tls: Tls, make: Callable[[], ssl.SSLContext]) -> None:
        """Create the first context with `make`.

        Later failures of `make` leave the former context in use.

        Raises:
            InvalidInput: `make` raised it.
        """
        self._tls = tls
        self._make = make
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._looked_at = time.monotonic()
        self._context = make()

    def now(self) -> ssl.SSLContext:
        """Return the context for the next handshake."""
        # Does not wait for a thread that is checking: in a forked child that thread may not exist.
        if self._lock.acquire(blocking=False):
            try:
                if time.monotonic() - self._looked_at >= RELOAD_CHECK_SECONDS:
                    self._looked_at = time.monotonic()
                    self._renew()
            finally:
                self._lock.release()
        return self._context

    def _renew(self) -> None:
        stamps = self._look()
        if stamps == self._stamps:
            return
        try:
            self._context = self._make()
        except InvalidInput as error:  # the files are being replaced: the next check tries again
            _log.warning("the TLS files have changed and cannot be used yet: %s", error)
        else:
            self._stamps = stamps
            _log.info("the TLS files have changed: new connections use them")

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in (self._tls.ca_file, self._tls.cert_file, self._tls.key_file) if path]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of a listening server.

    Raises:
        InvalidInput: a file is missing or cannot be used.
    """
    if tls.cert_file is None or tls.key_file is None:
        raise InvalidInput("tls_cert_file", "a certificate, and its key as tls_key_file", tls.cert_file)
    if tls.client_auth and tls.ca_file is None:
        raise InvalidInput("tls_ca_file", "the CA that signs client certificates, for tls_client_auth", tls.ca_file)
    renewed = ReloadingContext(tls, lambda: _server_context(tls))
    context = _server_context(tls)

    def begin(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = renewed.now()

    context.sni_callback = begin  # OpenSSL calls it at each handshake, whether the client names a server or not
    return context


def client_context(tls: Tls) -> ReloadingContext:
    """Return the reloading TLS context of a client.

    Raises:
        InvalidInput: a file is missing or cannot be used.
    """
    return ReloadingContext(tls, lambda: _client_context(tls))


def _server_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, tls)
    if tls.client_auth:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _client_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_host
    if tls.ca_file is None:
        context.load_default_certs()
    _load(context, tls)
    return context


def _load(context: ssl.SSLContext, tls: Tls) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # some builds of Python use the system's minimum
    try:
        if tls.ca_file is not None:
            context.load_verify_locations(tls.ca_file)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:
        raise InvalidInput("tls", "PEM files of a CA, a certificate and its key", f"{tls}: {error}") from error
