"""Where the actors of a cluster are when their machines have other addresses than when the cluster was started.

Ray starts an actor again wherever the resource is that it is bound to: on the machine that has its disk now.
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

from raymq.actors import handles
from raymq.actors.errors import RayMQError
from raymq.actors.naming import keeper_name, name_server_name
from raymq.actors.wire import moved

_LOOK_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 2.0
_CALL_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


def own_address(host: str) -> str:
    """`host` where it is an address of this machine, else the one by which Ray knows the machine."""
    with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as tried:
        try:
            tried.bind((host, 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            own: str = ray.util.get_node_ip_address()
            _log.warning("%s is no address of this machine any more; %s is", host, own)
            return own
    return host


def names_by_address(name_servers: Sequence[str], keepers: Mapping[str, Any] | None) -> dict[str, str]:
    """The actors that others know by addresses: name servers in their order, and of a set of keepers (JSON) all."""
    known = {address: name_server_name(index) for index, address in enumerate(name_servers)}
    if keepers is None:
        return known
    from raymq.actors.keeper.serving.location import keepers_at  # most clusters have none

    members = keepers_at(keepers).members
    return known | {member.address: keeper_name(number) for number, member in members.items()}


def on_loopback(addresses: Iterable[str]) -> bool:
    """Whether all of them are of one machine alone: there nothing moves."""
    return all(address.startswith("127.") for address in addresses)


class AddressWatch:
    """Looks whether servers still answer where an actor knows them, and asks Ray where they are else.

    It is a thread that ends with the process.
    """

    def __init__(
        self,
        namespace: str,
        known: Callable[[], Mapping[str, str]],
        on_moved: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """Begin.

        Args:
            known: the names of actors, by the addresses that they are known by; asked each time.
            on_moved: told the name and the address of one that has moved. Both are called on the thread.
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
            except Exception:  # noqa: BLE001 - whatever it is, the next look may go well
                _log.exception("it is not known whether servers have moved")
            pause.wait(_LOOK_SECONDS)

    def _look(self, known_as: str, name: str) -> None:
        try:
            address = look_again(known_as, name, self._namespace)
            if address is not None:
                self._on_moved(name, address)
        except (RayMQError, OSError) as error:
            _log.debug("%s is not found: %s", name, error)


def look_again(known_as: str, name: str, namespace: str) -> str | None:
    """Where nobody listens at the address of an actor's, ask it for the one of now; errors as `handles.call`.

    Returns:
        where it has moved to; None if it has not.
    """
    before = moved.now(known_as)
    if _listens(before):
        return None
    handle = handles.find(name, namespace)
    address: str = handles.call(name, handle, "address", _CALL_SECONDS, _CALL_SECONDS, timeout=2 * _CALL_SECONDS)
    if address == before:
        return None
    _log.warning("%s has moved from %s to %s", name, before, address)
    moved.moved(known_as, address)
    return address


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            return True
    except OSError:
        return False
