"""The headers of RocketMQ's commands, a file per family; `commands` builds them, brokers and name servers serve them.

`REQUESTS` is the table of all: a request's code and the dataclass of its fields. A command without fields has none.
"""

from __future__ import annotations

from raymq.actors.wire.headers import admin, group, pop, pull, query, recall, route, send
from raymq.actors.wire.headers.base import Header, wire_names

#: Header by request code.
REQUESTS: dict[int, type[Header]] = {
    header.CODE: header
    for family in (admin, group, pop, pull, query, recall, route, send)
    for header in vars(family).values()
    if isinstance(header, type) and issubclass(header, Header) and "CODE" in vars(header)
}

__all__ = ["REQUESTS", "Header", "wire_names"]
