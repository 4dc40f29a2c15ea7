"""One line on the death of a process of the cluster, in the place of what Ray writes to the terminal of its driver.

Ray has one function that writes such messages of a raylet. It is replaced by one that leaves out those about processes
of clusters that this process watches, and writes all others as before.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ray._private import state as ray_state
from ray._private import worker as ray_worker

from raymq.actors import handles
from raymq.cluster.launching import await_address
from raymq.storage.errors import number_text

#: The classes of the cluster's actors, as Ray calls them.
OUR_CLASSES: Final = frozenset({"Broker", "NameServer", "Scheduler", "Coordinator", "Keeper", "Producer"})
#: Those of them that say when they serve again.
_LISTENING: Final = frozenset({"Broker", "NameServer"})
#: How long it is waited for a process that died.
_BACK_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_DEATH: Final = re.compile(r"A worker died or was killed\b.*?\bWorker PID: (\d+)", re.DOTALL)

_log = logging.getLogger("raymq.cluster")

#: Ray's own function, where it is replaced.
_rays_own: Callable[..., Any] | None = None
_replacing: Final = threading.Lock()
_namespaces: Final[set[str]] = set()
#: Our actors by their processes, former ones included: one that is back at once has another when Ray's message comes.
_actors: Final[dict[int, str]] = {}


def watch(namespace: str) -> None:
    """Say in one line what dies of the cluster in `namespace`, as long as this process lives. Any thread."""
    global _rays_own  # noqa: PLW0603 - it is Ray's module that has the function
    with _replacing:
        _namespaces.add(namespace)
        if _rays_own is None and hasattr(ray_worker, "print_to_stdstream"):  # else a Ray that writes in another way
            _rays_own = ray_worker.print_to_stdstream
            ray_worker.print_to_stdstream = _write


def remember() -> None:
    """Note the processes of all clusters in this Ray, by which their deaths are known. Any thread."""
    with contextlib.suppress(Exception):  # then Ray writes what it writes
        _ours()


def _ours() -> dict[str, dict[str, Any]]:
    """Our actors, by id."""
    actors: dict[str, dict[str, Any]] = ray_state.actors()
    ours = {key: each for key, each in actors.items() if each["Name"] and each["ActorClassName"] in OUR_CLASSES}
    _actors.update({each["Pid"]: key for key, each in ours.items()})
    return ours


def _write(data: dict[str, Any], *given: Any, **options: Any) -> None:
    """Write a message as Ray does, unless it is on the death of a process of ours."""
    dead = None
    with contextlib.suppress(Exception):  # whatever cannot be looked at is Ray's to write
        dead = _dead_of_ours(data)
    if dead is None:
        assert _rays_own is not None
        _rays_own(data, *given, **options)
        return
    pid = dead_process(data)
    threading.Thread(target=_tell, args=(dead, pid, time.monotonic()), name="raymq-death", daemon=True).start()


def dead_process(data: dict[str, Any]) -> int | None:
    """Return the process id in a raylet's message on a worker's death; None: it is another message."""
    if data.get("pid") != "raylet":
        return None
    found = _DEATH.search("\n".join(map(str, data.get("lines", ()))))
    return None if found is None else int(found[1])


def _dead_of_ours(data: dict[str, Any]) -> dict[str, Any] | None:
    """What Ray knows of the actor of ours whose process died, None if it is no actor of ours."""
    pid = dead_process(data)
    if pid is None:
        return None
    ours = _ours()
    return ours.get(_actors.pop(pid, ""))


def _tell(dead: dict[str, Any], pid: int, died: float) -> None:
    """Wait until it is back, and say how long that took."""
    name = dead["Name"]
    state = dead
    while time.monotonic() - died < _BACK_SECONDS:
        with contextlib.suppress(Exception):
            state = ray_state.actors(dead["ActorID"])
            if state["State"] == "DEAD":
                break
            if state["State"] == "ALIVE" and state["Pid"] != pid:
                _actors[state["Pid"]] = dead["ActorID"]
                _await_service(name, dead["ActorClassName"])
                _log.warning("%s (process %d) died; it was back %s", name, pid, _after(died))
                return
        time.sleep(_POLL_SECONDS)
    is_gone = state.get("State") == "DEAD"
    remedy = "cluster.start() with the arguments of before makes it again" if is_gone else "`raymq doctor` says more"
    _log.warning("%s (process %d) died and is not back %s (%s)", name, pid, _after(died), remedy)


def _await_service(name: str, kind: str) -> None:
    if kind in _LISTENING:
        for namespace in list(_namespaces):
            with contextlib.suppress(Exception):
                await_address(name, handles.find(name, namespace))
                return


def _after(died: float) -> str:
    return f"after {number_text(time.monotonic() - died, 2)} s"
