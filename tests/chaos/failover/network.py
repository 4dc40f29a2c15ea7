"""Simulate hosts on one machine: network namespaces on a bridge, with controlled packet loss.

    with Network(["h1", "h2", "clients"]) as network:
        network.cut("h1", "h2")      # drops packets from h1 to h2; packets from h2 still arrive
        network.mend("h1", "h2")

They are made in the caller's own network namespace (`isolation`). A cut needs no packet filter: the sender gets a
nonexistent hardware address for its neighbour, so that the bridge drops its packets.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

_BRIDGE: Final = "bridge0"
_NET: Final = "10.77.0"
_NOBODY: Final = "02:00:00:00:ff:ff"
#: The caller's own address on the bridge, from which every host is always reachable.
OBSERVER: Final = f"{_NET}.254"


class Network:
    """The hosts by name, numbered from 1 in the given order."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = {name: number for number, name in enumerate(hosts, 1)}
        #: Pairs of sender and receiver whose packets are dropped.
        self.cuts: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        _ip("link", "set", "lo", "up")
        _ip("link", "add", _BRIDGE, "address", _mac(254), "type", "bridge")
        _ip("link", "set", _BRIDGE, "up")
        _ip("addr", "add", f"{OBSERVER}/24", "dev", _BRIDGE)
        for name, number in self.hosts.items():
            _ip("netns", "add", name)
            _ip("link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", f"veth{number}", "master", _BRIDGE, "up")
            _ip("-n", name, "link", "set", "eth0", "address", _mac(number))
            _ip("-n", name, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        for name in self.hosts:
            _ip("-n", name, *_neighbour(OBSERVER, _mac(254)))
            _ip(*_neighbour(self.address(name), _mac(self.hosts[name]), _BRIDGE))
            for other in self.hosts:
                if other != name:
                    self.mend(name, other)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self.hosts:
            _ip("netns", "del", name)
        _ip("link", "del", _BRIDGE)

    def address(self, host: str) -> str:
        """Return the host's IPv4 address."""
        return f"{_NET}.{self.hosts[host]}"

    def inside(self, host: str) -> list[str]:
        """Return the prefix of a command that runs on the host."""
        return ["ip", "netns", "exec", host]

    def cut(self, sender: str, receiver: str) -> None:
        """Drop packets from sender to receiver silently."""
        self.cuts.add((sender, receiver))
        _ip("-n", sender, *_neighbour(self.address(receiver), _NOBODY))

    def mend(self, sender: str, receiver: str) -> None:
        """Undo `cut`."""
        self.cuts.discard((sender, receiver))
        _ip("-n", sender, *_neighbour(self.address(receiver), _mac(self.hosts[receiver])))

    def slow(self, host: str, bits: str | None) -> None:
        """Limit a host's sending rate to so many bits a second ("2mbit"); None: no limit."""
        parts = ["root", "tbf", "rate", bits, "burst", "32k", "latency", "400ms"] if bits else ["root"]
        command = ["tc", "-n", host, "qdisc", "add" if bits else "del", "dev", "eth0", *parts]
        subprocess.run(command, check=True, capture_output=True)


def _mac(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def _neighbour(address: str, mac: str, device: str = "eth0") -> list[str]:
    return ["neigh", "replace", address, "lladdr", mac, "nud", "permanent", "dev", device]


def _ip(*arguments: str) -> None:
    try:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise OSError(f"ip {' '.join(arguments)}: {error.stderr}") from error
