"""TLS of sockets: the contexts that asyncio takes, made of a `Tls`.

Both raise InvalidInput where a file is missing or cannot be used.
"""

from __future__ import annotations

import ssl

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import Tls


def server_context(tls: Tls) -> ssl.SSLContext:
    """For who listens."""
    if tls.cert_file is None or tls.key_file is None:
        raise InvalidInput("tls_cert_file", "a certificate, and its key as tls_key_file", tls.cert_file)
    if tls.client_auth and tls.ca_file is None:
        raise InvalidInput("tls_ca_file", "who signs the certificates of clients, for tls_client_auth", tls.ca_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, tls)
    if tls.client_auth:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: Tls) -> ssl.SSLContext:
    """For who connects."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_host
    if tls.ca_file is None:
        context.load_default_certs()
    _load(context, tls)
    return context


def _load(context: ssl.SSLContext, tls: Tls) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # some builds of Python leave it to the system's configuration
    try:
        if tls.ca_file is not None:
            context.load_verify_locations(tls.ca_file)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:
        raise InvalidInput("tls", "PEM files of a CA, a certificate and its key", f"{tls}: {error}") from error
