"""The entry of name servers with the URL of the cluster's own console."""

from __future__ import annotations

import contextlib
from typing import Final

from raymq.actors.wire.headers.route_headers import GetKeyValue, PutKeyValue
from raymq.client import Connection, RayMQError

#: The namespace of the entry on name servers.
CONSOLE_ENTRIES: Final = "RAYMQ_CONSOLE"
_KEY: Final = "url"
_REQUEST_SECONDS: Final = 3.0


def publish_console(mq: Connection, url: str) -> None:
    """Write the URL to every name server that answers."""
    for address in mq.name_servers:
        with contextlib.suppress(RayMQError):
            mq.run(mq.pool.request(address, PutKeyValue(CONSOLE_ENTRIES, _KEY, url).command(), _REQUEST_SECONDS))


def find_console(mq: Connection) -> str | None:
    """Return the URL, from the first name server that has it; None without a console."""
    for address in mq.name_servers:
        with contextlib.suppress(RayMQError):
            answer = mq.run(mq.pool.request(address, GetKeyValue(CONSOLE_ENTRIES, _KEY).command(), _REQUEST_SECONDS))
            return str(answer.fields["value"])
    return None
