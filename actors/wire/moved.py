"""Servers that have moved: who connects to an address that one had reaches the one that it has now.

Actors know name servers and keepers by the addresses of when the cluster was started, and keep calling them so. Where
a machine's disk was put into another one they have other addresses (`actors.address_watch`).
"""

from __future__ import annotations

_addresses: dict[str, str] = {}


def now(address: str) -> str:
    """Where to connect to for the server that is known by this address."""
    return _addresses.get(address, address)


def moved(known_as: str, address: str) -> None:
    """The server that is known by the one address listens at the other one. Any thread."""
    _addresses[known_as] = address
