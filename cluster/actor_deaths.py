"""Log one line when a process of the cluster dies, instead of Ray's messages.

Ray writes the messages of a raylet to the driver's terminal with one function. This module replaces the function with
one that omits messages about processes of watched clusters, and writes all others unchanged.
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

from raymq.actors import actor_calls
from raymq.cluster.cluster_launch import await_address
from raymq.storage.errors import number_text

#: The class names of the cluster's actors in Ray.
OUR_CLASSES: Final = frozenset({"Broker", "NameServer", "Scheduler", "Coordinator", "Keeper", "Producer", "Console"})
#: The classes whose actors report when they serve again after a restart.
_WITH_ADDRESS: Final = frozenset({"Broker", "NameServer"})
#: The seconds to wait for the restart of a process.
_RESTART_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_DEATH: Final = re.compile(r"A worker died or was killed\b.*?\bWorker PID: (\d+)", re.DOTALL)

_log = logging.getLogger("raymq.cluster")

#: Ray's own function, once it is replaced.
_original_print: Callable[..., Any] | None = None
_replacing: Final = threading.Lock()
_namespaces: Final[set[str]] = set()
#: Our actors by process id, including former processes: an actor that restarted fast has a new process id when Ray's
#: message arrives.
_actors: Final[dict[int, str]] = {}


def watch(namespace: str) -> None:
    """Log the deaths of processes of the cluster in `namespace` in one line each.

    This continues until this process ends. Safe for any thread.
    """
    global _original_print  # noqa: PLW0603 - the function belongs to Ray's module
    with _replacing:
        _namespaces.add(namespace)
        if _original_print is None and hasattr(
            ray_worker, "print_to_stdstream"
        ):  # Another version of Ray may write in another way.
            _original_print = ray_worker.print_to_stdstream
            ray_worker.print_to_stdstream = _write


def record_actor_pids() -> None:
    """Record the process ids of all clusters in this Ray, to recognize their deaths later.

    Safe for any thread.
    """
    with contextlib.suppress(Exception):  # Without the process ids Ray's own messages remain.
        _live_actors()


def _live_actors() -> dict[str, dict[str, Any]]:
    """Return our named actors by id, and record their process ids."""
    actors: dict[str, dict[str, Any]] = ray_state.actors()
    ours = {key: each for key, each in actors.items() if each["Name"] and each["ActorClassName"] in OUR_CLASSES}
    _actors.update({each["Pid"]: key for key, each in ours.items()})
    return ours


def _write(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
    """Write a message as Ray does, unless it reports the death of our process."""
    dead = None
    with contextlib.suppress(Exception):  # If the actor cannot be determined, Ray writes the message.
        dead = _dead_actor(data)
    if dead is None:
        assert _original_print is not None
        _original_print(data, *arguments, **options)
        return
    pid = dead_worker_pid(data)
    threading.Thread(target=_log_restart, args=(dead, pid, time.monotonic()), name="raymq-death", daemon=True).start()


def dead_worker_pid(data: dict[str, Any]) -> int | None:
    """Return the process id in a raylet's message on a dead worker, else None."""
    if data.get("pid") != "raylet":
        return None
    found = _DEATH.search("\n".join(map(str, data.get("lines", ()))))
    return None if found is None else int(found[1])


def _dead_actor(data: dict[str, Any]) -> dict[str, Any] | None:
    """Return Ray's record of our actor whose process died, None for other processes."""
    pid = dead_worker_pid(data)
    if pid is None:
        return None
    ours = _live_actors()
    return ours.get(_actors.pop(pid, ""))


def _log_restart(dead: dict[str, Any], pid: int, died: float) -> None:
    """Wait until the actor has restarted, and log how long that took."""
    name = dead["Name"]
    state = dead
    while time.monotonic() - died < _RESTART_SECONDS:
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
    remedy = "cluster.start() with the same arguments starts it again" if is_gone else "`raymq doctor` says more"
    _log.warning("%s (process %d) died and is not back %s (%s)", name, pid, _after(died), remedy)


def _await_service(name: str, kind: str) -> None:
    if kind in _WITH_ADDRESS:
        for namespace in list(_namespaces):
            with contextlib.suppress(Exception):
                await_address(name, actor_calls.find(name, namespace))
                return


def _after(died: float) -> str:
    return f"after {number_text(time.monotonic() - died, 2)} s"
