"""The current addresses of servers that moved to another address.

Actors know name servers and keepers by the addresses that they had when the cluster was started, and keep using these
as their names. A server gets another address when its machine's disk is put into another machine
(`actors.address_watch`).
"""

from __future__ import annotations

_addresses: dict[str, str] = {}


def now(address: str) -> str:
    """Return the address to connect to for the server that is known by `address`."""
    return _addresses.get(address, address)


def moved(known_as: str, address: str) -> None:
    """Record that the server `known_as` listens at `address` now. Any thread."""
    _addresses[known_as] = address
