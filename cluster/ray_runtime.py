"""Join or start the Ray of this process, without printing anything.

A Ray is joined if this process is connected to it, if `address=` or RAY_ADDRESS names it, or if `ray start` or `ray up`
started it on this machine. Another program's embedded Ray is private to that program, because it ends with that
program.

A Ray that this module started ends when its last user calls `release`. A Ray that existed before, or that was joined,
is never ended, because the program may use it for other work.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final

import ray
from ray._private import node as ray_node
from ray._private import services as ray_services
from ray._private import state as ray_state
from ray._private import utils as ray_utils
from ray._private import worker as ray_worker
from ray._raylet import Config  # type: ignore[attr-defined] # made by compiled code
from ray.exceptions import RayError
from ray.experimental import internal_kv
from ray.job_config import JobConfig

from raymq.actors import spare_process
from raymq.actors.errors import BrokerUnavailable
from raymq.actors.java import JavaNotFound, java_environment
from raymq.actors.naming import host_resource
from raymq.cluster.log_format import FORMAT_VARIABLE
from raymq.cluster.machines import list_machines
from raymq.cluster.ray_probe import AUTH_MODE, RayEndpoint, RayNotRunning, probe_ray
from raymq.storage.errors import number_text

#: The environment of an embedded Ray, unless it is set already. RAY_AUTH_MODE is not among it: Ray has read it at its
#: import, and protects its own cluster with a token by itself.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Otherwise brokers run at niceness 15 and wait for all other processes of the machine.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Otherwise Ray warns about missing GPUs.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # Otherwise a SIGTERM prints stack traces.
}
#: Modules that Ray imports in each worker process before its use, so that a spare process becomes a broker faster.
_PRELOAD = ("RAY_preload_python_modules", "raymq.actors.broker_actor")
_OBJECT_STORE_BYTES = 512 * 1024 * 1024
#: Ray replaces 127.0.0.1 with the machine's real address; any other loopback address is kept.
_LOOPBACK = "127.0.0.2"
ADDRESS: Final = "RAY_ADDRESS"
_POLL_SECONDS: Final = 0.2

_log = logging.getLogger(__name__)


class _Embedded:
    """The Ray that this process started, and the number of clusters that use it.

    Attributes:
        ended: ends the thread that started it.
        is_parents: this process was forked from one that is connected to a Ray, which a child cannot use.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.ended = threading.Event()
        self.is_parents = False


_embedded = _Embedded()


class _ActorLogging(ray.LoggingConfig):
    """The form of actors' log lines, without an effect on this process's logging."""

    def _apply(self) -> None:
        """Do nothing; Ray calls it in this process."""


def _job_options(named: str | None = None) -> dict[str, Any]:
    """Return the options of `ray.init` for the Ray of that address, a new one without.

    With RAYMQ_LOG_FORMAT=json the actors that this process creates log a JSON object per line.
    """
    if os.environ.get(FORMAT_VARIABLE) != "json":
        return {}
    of_lines: dict[str, Any] = {
        "encoding": "JSON",
        "log_level": "WARNING",
        "additional_log_standard_attrs": ["name"],
    }
    if named is not None and "://" in named:  # Ray's client sends options as JSON, which a JobConfig cannot be.
        return {"logging_config": _ActorLogging(**of_lines)}
    config = JobConfig()
    config.set_py_logging_config(ray.LoggingConfig(**of_lines))
    return {"job_config": config}


def join() -> bool:
    """Join the available Ray; return False if there is none.

    In that case the caller starts an embedded Ray.

    Raises:
        BrokerUnavailable: the named Ray, or the one that was started on this machine, cannot be joined.
    """
    if ray.is_initialized():
        return True
    _check_not_forked()
    named = os.environ.get(ADDRESS, "")
    if named == "local":  # Ray's own value for "start a new one".
        return False
    if named not in ("", "auto"):
        _join(named)
        return True
    return _join_started_here()


def join_address(address: str, last_resort: Callable[[], str | None]) -> None:
    """Connect this process to the Ray at `address`.

    "auto" is RAY_ADDRESS, or the Ray that was started on this machine.

    Args:
        last_resort: returns, for "auto", the address of a Ray to try if no other is found, or None. It is called only
            in that case, because it may raise.

    Raises:
        BrokerUnavailable: there is no Ray, it does not answer, or it refuses this process.
    """
    if ray.is_initialized():
        return
    _check_not_forked()
    is_auto = address == "auto"
    if is_auto:
        address = os.environ.get(ADDRESS, "auto")
    if address not in ("auto", "local"):
        _join(address)
        return
    if _join_started_here():
        return
    known = last_resort() if is_auto else None
    if known is None or not _join_if_there(known):
        raise RayNotRunning(
            "ray",
            "this process is connected to no Ray, and none was started on this machine by `ray start` or `ray up`",
            remedy="start a cluster with cluster.start(); name another Ray (address=, RAY_ADDRESS); or reach a cluster "
            "without Ray (name_servers=)",
        )


#: Ray's message if a node does not start within Ray's 30 s (ray/_private/node.py, 2.60), and the most attempts.
_TOOK_TOO_LONG: Final = "timed out during startup"
_TRIES: Final = 3


def use_embedded() -> None:
    """Start an embedded Ray, or use the running one, until `release`."""
    with _embedded.lock:
        if not ray.is_initialized():
            _embedded.users = 0
            start_embedded()
        _embedded.users += 1


def is_embedded() -> bool:
    """Return True if `use_embedded` started the Ray of this process."""
    return _embedded.users > 0 and ray.is_initialized()


def release() -> None:
    """Release the embedded Ray; the last user ends it."""
    with _embedded.lock:
        _embedded.users = max(0, _embedded.users - 1)
        if _embedded.users == 0 and ray.is_initialized():
            ray.shutdown()
        if _embedded.users == 0:
            _embedded.ended.set()


def start_embedded(cpus: int | None = None) -> None:
    """Start an embedded Ray on loopback, with a Java for Spark if there is one."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if spare_process.is_spare_enabled():
        os.environ.setdefault(*_PRELOAD)
    with contextlib.suppress(JavaNotFound):  # A cluster without Spark needs no Java.
        os.environ.update(java_environment())
    for further in reversed(range(_TRIES)):
        try:
            _run_on_lasting_thread(partial(_init_embedded, cpus or max(2, os.cpu_count() or 2)))
        except Exception as error:
            if not further or _TOOK_TOO_LONG not in str(error):
                raise
            ray.shutdown()
        else:
            return


def _init_embedded(cpus: int) -> None:
    with _own_processes():
        ray.init(
            address="local",
            num_cpus=cpus,
            resources={host_resource(socket.gethostname()): 1.0},
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **_job_options(),
            _node_ip_address=_LOOPBACK,
        )


def _run_on_lasting_thread(start: Callable[[], None]) -> None:
    """Call `start` on a thread that runs until `release`.

    The kernel ends Ray's processes with the thread that started them, and a thread of the program may end before the
    cluster. An interrupted caller waits for the start, ends that Ray, and raises the interruption.
    """
    _embedded.ended.set()  # Ends the thread of an earlier Ray that other code has shut down.
    _embedded.ended = ended = threading.Event()
    started: Future[None] = Future()

    def live() -> None:
        try:
            start()
        except BaseException as error:  # noqa: BLE001 - it is raised in the calling thread
            started.set_exception(error)
        else:
            started.set_result(None)
            ended.wait()

    threading.Thread(target=live, name="raymq-ray", daemon=True).start()
    try:
        started.result()
    except BaseException:
        if not started.done():
            wait([started])
            ray.shutdown()
        raise


#: Ray's processes that an embedded Ray does not need: the autoscaler, the log monitor, and the dashboard, which Ray
#: starts and waits for even with `include_dashboard=False` (ray/_private/node.py, 2.60).
_LEFT_OUT: Final = ("start_monitor", "start_log_monitor", "start_api_server")


@contextlib.contextmanager
def _own_processes() -> Iterator[None]:
    """Start only the necessary processes of Ray, outside this process's group.

    Ray has no settings for this. A signal to the group would end the processes before a clean stop.
    """
    services: Any = ray_services
    with contextlib.ExitStack() as replaced:
        popen = services.ConsolePopen
        replaced.callback(setattr, services, "ConsolePopen", popen)
        services.ConsolePopen = partial(popen, start_new_session=True)
        for name in _LEFT_OUT:
            if hasattr(ray_node.Node, name):
                replaced.callback(setattr, ray_node.Node, name, getattr(ray_node.Node, name))
                setattr(ray_node.Node, name, _start_nothing)
        yield


def _start_nothing(node: ray_node.Node, **_: object) -> None:
    """Replace one of the methods in `_LEFT_OUT`."""
    node._webui_url = None  # noqa: SLF001 - the dashboard's address, though it does not run


@contextlib.contextmanager
def _programs_sigterm_handler() -> Iterator[None]:
    """Restore the program's SIGTERM handler, or asyncio's, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        was_set = before is not None and before is not signal.SIG_DFL
        if was_set and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _check_not_forked() -> None:
    if _embedded.is_parents:
        raise BrokerUnavailable(
            "ray",
            "this process was forked from one that is connected to Ray, and Ray's connection does not survive a fork",
            remedy="use the connection of the parent, or cluster.connect(name_servers=...); or start the process by "
            'multiprocessing\'s method "spawn"',
        )


def _leave_ray_to_parent() -> None:
    """Forget the parent's Ray in a forked child.

    A shutdown in the child would wait for the parent's threads, and end the parent's processes.
    """
    _embedded.lock, _embedded.users = threading.Lock(), 0
    if not ray.is_initialized():
        return
    _embedded.is_parents = True
    atexit.unregister(ray_worker.shutdown)
    # Ray's compiled objects would join the parent's threads when they are destroyed, so none may be destroyed, also not
    # at the exit.
    gc.freeze()
    worker: Any = ray_worker.global_worker
    holders = (worker, ray_worker._global_node, ray_state.state, internal_kv)  # noqa: SLF001
    ctypes.pythonapi.Py_IncRef(ctypes.py_object([dict(vars(holder)) for holder in holders if holder is not None]))
    worker.set_is_connected(False)  # Makes `ray.is_initialized()` return False.
    worker.set_mode(None)  # Otherwise an exception that ends the child is reported to the parent's Ray.
    _leave_out_exit_handlers_of_before()


def _leave_out_exit_handlers_of_before() -> None:
    """End this process without the parent's exit handlers of C, one of which is Ray's.

    Handlers that are registered last run first: files are flushed, then `_exit` ends the process with its exit code.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # The C library has no `on_exit`.
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)  # noqa: SLF001 - a function of C
        libc.__cxa_atexit(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)  # noqa: SLF001 - a function of C


os.register_at_fork(after_in_child=_leave_ray_to_parent)


def hosts() -> list[tuple[str, str]]:
    """Return the machines of the Ray cluster, this process's machine first.

    See `list_machines`.
    """
    return list_machines(ray.nodes(), ray.get_runtime_context().get_node_id())


def await_hosts(count: int, seconds: float, say: Callable[[str], None]) -> None:
    """Wait until the Ray cluster has `count` machines.

    Each change of their number is reported through `say`.

    Raises:
        BrokerUnavailable: there are fewer after `seconds`.
    """
    deadline, reported = time.monotonic() + seconds, -1
    while (there := len(hosts())) < count:
        if there != reported:
            say(f"{there} of {count} machines have joined")
            reported = there
        if time.monotonic() >= deadline:
            raise BrokerUnavailable(
                "ray",
                f"of {count} machines {there} are part of this Ray cluster after {number_text(seconds, 3)} s",
                remedy="`ray status` and the autoscaler's log (/tmp/ray/session_latest/logs/monitor*) show why",
            )
        time.sleep(_POLL_SECONDS)


def address() -> str | None:
    """Return the address of this process's Ray, "host:port", None without a connection."""
    return ray.get_runtime_context().gcs_address if ray.is_initialized() else None


def _join_started_here() -> bool:
    """Join the Ray that `ray start` or `ray up` started on this machine.

    Return False if it no longer exists.
    """
    started = ray_utils.read_ray_address()
    return bool(started) and _join_if_there(started)


def _join_if_there(address: str) -> bool:
    try:
        _join(address)
    except RayNotRunning as error:
        _log.info("the Ray at the saved address does not run any more: %s", error)
        return False
    return True


def _join(named: str) -> None:
    if "://" not in named:
        _agree(probe_ray(named))
    try:
        with _programs_sigterm_handler():
            ray.init(address=named, log_to_driver=False, logging_level=logging.ERROR, **_job_options(named))
    except (RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()
        raise BrokerUnavailable("ray", f"cannot join the Ray at {named}: {reason[0] if reason else error!r}") from error


def _agree(found: RayEndpoint) -> None:
    """Adopt the found Ray's authentication mode, or raise BrokerUnavailable.

    The error says why the Ray cannot be joined: another version, or another mode than RAY_AUTH_MODE.
    """
    if found.version is not None and found.version != ray.__version__:
        raise BrokerUnavailable(
            "ray",
            f"the Ray at {found.address} is version {found.version}, this process has {ray.__version__}",
            remedy="install the same version on both sides",
        )
    own_mode = os.environ.get(AUTH_MODE, "").lower()
    if own_mode and own_mode != found.auth_mode:
        raise BrokerUnavailable(
            "ray",
            f"the Ray at {found.address} runs with {AUTH_MODE}={found.auth_mode}, this process with {own_mode}: "
            "the actors of one would be ended by the other",
            remedy=f"set {AUTH_MODE}={found.auth_mode} for this process",
        )
    if not own_mode:
        os.environ[AUTH_MODE] = found.auth_mode
        Config.initialize("")  # Ray's own function to read the environment again.
