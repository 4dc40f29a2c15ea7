"""Find the actors of a cluster whose machines have new addresses since the cluster's start.

Ray restarts an actor on the machine that has the resource which the actor is bound to: the machine with its disk.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import ray

from raymq.actors import actor_calls
from raymq.actors.errors import RayMQError
from raymq.actors.naming import keeper_name, name_server_name
from raymq.actors.wire import address_resolution

_LOOK_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 2.0
_CALL_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


def resolve_own_address(host: str) -> str:
    """Return `host` if it belongs to this machine, else Ray's address of the machine."""
    with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as tried:
        try:
            tried.bind((host, 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            own: str = ray.util.get_node_ip_address()
            _log.warning("%s does not belong to this machine any more; using %s", host, own)
            return own
    return host


def names_by_address(name_servers: Sequence[str], keepers: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the actor names of name servers and keepers, by their known addresses.

    `name_servers` are in the order of their indices. `keepers` is the register's location as JSON values, or None.
    """
    known = {address: name_server_name(index) for index, address in enumerate(name_servers)}
    if keepers is None:
        return known
    from raymq.actors.keeper.serving.register_location import keepers_at  # most clusters have none

    members = keepers_at(keepers).members
    return known | {member.address: keeper_name(number) for number, member in members.items()}


def is_loopback_only(addresses: Iterable[str]) -> bool:
    """Return True if all addresses are loopback addresses, which never change."""
    return all(address.startswith("127.") for address in addresses)


class AddressWatch:
    """Checks whether servers still answer at their known addresses, and asks Ray otherwise.

    It is a daemon thread that ends with the process.
    """

    def __init__(
        self,
        namespace: str,
        known: Callable[[], Mapping[str, str]],
        on_moved: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """Start the thread, which calls both functions.

        Args:
            known: returns the names of actors by their known addresses; called for each check.
            on_moved: called with the name and the new address of an actor that has moved.
        """
        self._namespace = namespace
        self._known = known
        self._on_moved = on_moved
        threading.Thread(target=self._watch, name="address-watch", daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        while True:
            try:
                for known_as, name in self._known().items():
                    self._look(known_as, name)
            except Exception:  # noqa: BLE001 - after any error, the next check may succeed
                _log.exception("could not check whether servers have moved")
            pause.wait(_LOOK_SECONDS)

    def _look(self, known_as: str, name: str) -> None:
        try:
            address = refresh_address(known_as, name, self._namespace)
            if address is not None:
                self._on_moved(name, address)
        except (RayMQError, OSError) as error:
            _log.debug("could not find %s: %s", name, error)


def refresh_address(known_as: str, name: str, namespace: str) -> str | None:
    """Ask an actor for its current address if its known one does not accept connections.

    Raise the errors of `actor_calls.call`.

    Returns:
        the new address; None if the actor has not moved.
    """
    before = address_resolution.now(known_as)
    if _listens(before):
        return None
    handle = actor_calls.find(name, namespace)
    address: str = actor_calls.call(name, handle, "address", _CALL_SECONDS, _CALL_SECONDS, timeout=2 * _CALL_SECONDS)
    if address == before:
        return None
    _log.warning("%s has moved from %s to %s", name, before, address)
    address_resolution.moved(known_as, address)
    return address


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            return True
    except OSError:
        return False
