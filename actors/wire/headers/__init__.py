"""The headers of RocketMQ's commands, one file per family.

`commands` builds them; brokers and name servers read them. `REQUESTS` maps a request's code to the dataclass of its
fields. A command without fields has no header.

What is in it, in the order to read it:
    header: the base class, and how fields are read and written.
    send_headers, pull_headers, pop_headers, group_headers: sending, consuming, and consumer groups.
    query_headers, recall_headers: looking up messages, and recalling delayed ones.
    transaction_headers: ending transactions, and checking them.
    admin_headers, route_headers, controller_headers: administration, routes, and the controller.
"""

from __future__ import annotations

from raymq.actors.wire.headers import (
    admin_headers,
    group_headers,
    pop_headers,
    pull_headers,
    query_headers,
    recall_headers,
    route_headers,
    send_headers,
    transaction_headers,
)
from raymq.actors.wire.headers.header import Header, wire_names

#: Header by request code.
REQUESTS: dict[int, type[Header]] = {
    header.CODE: header
    for family in (
        admin_headers,
        group_headers,
        pop_headers,
        pull_headers,
        query_headers,
        recall_headers,
        route_headers,
        send_headers,
        transaction_headers,
    )
    for header in vars(family).values()
    if isinstance(header, type) and issubclass(header, Header) and "CODE" in vars(header)
}

__all__ = ["REQUESTS", "Header", "wire_names"]
