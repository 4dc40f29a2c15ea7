"""Which Ray: the one that this process is connected to, one that was named, or one of its own. Without a line of noise.

A Ray is joined if this process is connected to it, if `address=` or RAY_ADDRESS names it, or if `ray start` or `ray up`
started it on this machine. Another program's embedded Ray is private to that program: it would end with it.

A Ray that this module started ends when the last one that uses it lets it go (`release`); one that was there before,
or that was joined, is never ended: the program may have work of its own in it.
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

from raymq.actors import spare_process
from raymq.actors.errors import BrokerUnavailable
from raymq.actors.java import JavaNotFound, java_environment
from raymq.actors.naming import host_resource
from raymq.cluster.machines import machines_of
from raymq.cluster.ray_probe import AUTH_MODE, NoRay, RayFound, look
from raymq.storage.errors import number_text

#: Settings that an embedded Ray is started with unless the environment says otherwise. Not RAY_AUTH_MODE: Ray has read
#: it when it was imported, and protects a cluster of its own with a token by itself.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else brokers run at niceness 15 and wait for everything else on the machine
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns about GPUs that are not there
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # else a SIGTERM prints stack traces
}
#: What Ray imports in each worker process before it is used, so that a spare one is a broker sooner.
_PRELOAD = ("RAY_preload_python_modules", "raymq.actors.broker_actor")
_OBJECT_STORE_BYTES = 512 * 1024 * 1024
#: Ray takes 127.0.0.1 for "find my real address"; any other loopback address it leaves alone.
_LOOPBACK = "127.0.0.2"
ADDRESS: Final = "RAY_ADDRESS"
_POLL_SECONDS: Final = 0.2

_log = logging.getLogger(__name__)


class _Embedded:
    """The Ray that this process started, and how many clusters use it.

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


def join() -> bool:
    """Use the Ray that there is for this process; False if there is none, and one of its own is due.

    Raises:
        BrokerUnavailable: one was named that cannot be joined, or one that was started here is there and cannot.
    """
    if ray.is_initialized():
        return True
    _check_not_forked()
    named = os.environ.get(ADDRESS, "")
    if named == "local":  # Ray's own word for "start a new one"
        return False
    if named not in ("", "auto"):
        _join(named)
        return True
    return _join_started_here()


def join_address(address: str, last_resort: Callable[[], str | None]) -> None:
    """Connect this process to the Ray at `address` ("auto": RAY_ADDRESS, or the one that was started here).

    Args:
        last_resort: with "auto", where a Ray was that may be joined if there is no other, if it knows one. It is asked
            where nothing else leads to a Ray, and not before: it may raise.

    Raises:
        BrokerUnavailable: there is none, it does not answer, or it would not let this process in.
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
        raise NoRay(
            "ray",
            "this process is connected to no Ray, and none was started on this machine by `ray start` or `ray up`",
            remedy="name it (address=, RAY_ADDRESS), or reach the cluster without Ray (name_servers=)",
        )


#: How Ray says that a node has not come up within its 30 s (ray/_private/node.py, 2.60), and how often it may.
_TOOK_TOO_LONG: Final = "timed out during startup"
_TRIES: Final = 3


def use_embedded() -> None:
    """Start a Ray of this process's own, or use the one that was, until `release`."""
    with _embedded.lock:
        if not ray.is_initialized():
            _embedded.users = 0
            start_embedded()
        _embedded.users += 1


def is_embedded() -> bool:
    """Whether the Ray of this process was started by `use_embedded`."""
    return _embedded.users > 0 and ray.is_initialized()


def release() -> None:
    """The reverse of `use_embedded`: the last one ends that Ray."""
    with _embedded.lock:
        _embedded.users = max(0, _embedded.users - 1)
        if _embedded.users == 0 and ray.is_initialized():
            ray.shutdown()
        if _embedded.users == 0:
            _embedded.ended.set()


def start_embedded(cpus: int | None = None) -> None:
    """Start a Ray of this process's own, on loopback, with a Java that Spark can use if there is one."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if spare_process.is_wanted():
        os.environ.setdefault(*_PRELOAD)
    with contextlib.suppress(JavaNotFound):  # a cluster without Spark needs none
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
            _node_ip_address=_LOOPBACK,
        )


def _run_on_lasting_thread(start: Callable[[], None]) -> None:
    """Call `start` on a thread that lives until `release`.

    The kernel ends Ray's processes with the thread that started them, and a program's may end before the cluster.
    An interrupted caller waits for the start, ends that Ray, and goes on with the interruption.
    """
    _embedded.ended.set()  # the thread of a Ray that somebody else has shut down
    _embedded.ended = ended = threading.Event()
    started: Future[None] = Future()

    def live() -> None:
        try:
            start()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
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


#: Ray's processes that an embedded Ray has no use for: the autoscaler, what carries logs to drivers, and the dashboard,
#: which with `include_dashboard=False` is started all the same, and waited for (ray/_private/node.py, 2.60).
_LEFT_OUT: Final = ("start_monitor", "start_log_monitor", "start_api_server")


@contextlib.contextmanager
def _own_processes() -> Iterator[None]:
    """Start only the processes of Ray that are needed, outside this process's group. Ray has no settings for it.

    A signal to the group would end them before a clean stop.
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
    """Stand in for one of the methods of `_LEFT_OUT`."""
    node._webui_url = None  # noqa: SLF001 - the dashboard's, which is not there


@contextlib.contextmanager
def _programs_sigterm_handler() -> Iterator[None]:
    """Keep the handler of SIGTERM that the program has set, or asyncio for it: Ray sets its own in its place."""
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
    """In a forked child: forget the parent's Ray. To shut it down would wait for its threads, and end its processes."""
    _embedded.lock, _embedded.users = threading.Lock(), 0
    if not ray.is_initialized():
        return
    _embedded.is_parents = True
    atexit.unregister(ray_worker.shutdown)
    # Ray's compiled objects would join their threads where they are destroyed, so none may be, also at the end.
    gc.freeze()
    worker: Any = ray_worker.global_worker
    holders = (worker, ray_worker._global_node, ray_state.state, internal_kv)  # noqa: SLF001
    ctypes.pythonapi.Py_IncRef(ctypes.py_object([dict(vars(holder)) for holder in holders if holder is not None]))
    worker.set_is_connected(False)  # so that `ray.is_initialized()` is False
    worker.set_mode(None)  # else an exception that ends the child is told to the parent's Ray
    _leave_out_exit_handlers_of_before()


def _leave_out_exit_handlers_of_before() -> None:
    """Let this process end with its exit code before C's exit handlers of the parent, of which Ray's is one.

    Those that are registered last are called first: files are flushed, then `_exit` gets the exit code.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # a C library without `on_exit`
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)  # noqa: SLF001 - C's
        libc.__cxa_atexit(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)  # noqa: SLF001 - C's


os.register_at_fork(after_in_child=_leave_ray_to_parent)


def hosts() -> list[tuple[str, str]]:
    """The machines of the Ray cluster, see `machines_of`: the one that this process is on comes first."""
    return machines_of(ray.nodes(), ray.get_runtime_context().get_node_id())


def await_hosts(count: int, seconds: float, say: Callable[[str], None]) -> None:
    """Wait until the Ray cluster has so many machines; how many there are is said whenever that changes.

    Raises:
        BrokerUnavailable: it has not after `seconds`.
    """
    deadline, said = time.monotonic() + seconds, -1
    while (there := len(hosts())) < count:
        if there != said:
            say(f"{there} of {count} machines are there")
            said = there
        if time.monotonic() >= deadline:
            raise BrokerUnavailable(
                "ray",
                f"of {count} machines {there} are part of this Ray cluster after {number_text(seconds, 3)} s",
                remedy="`ray status` and the autoscaler's log (/tmp/ray/session_latest/logs/monitor*) say why",
            )
        time.sleep(_POLL_SECONDS)


def address() -> str | None:
    """Where the Ray of this process is found, "host:port"; None if it is connected to none."""
    return ray.get_runtime_context().gcs_address if ray.is_initialized() else None


def _join_started_here() -> bool:
    """Join the Ray that `ray start` or `ray up` started on this machine; False if there is none any more."""
    started = ray_utils.read_ray_address()
    return bool(started) and _join_if_there(started)


def _join_if_there(address: str) -> bool:
    try:
        _join(address)
    except NoRay as error:
        _log.info("the Ray that was there is gone: %s", error)
        return False
    return True


def _join(named: str) -> None:
    if "://" not in named:
        _agree(look(named))
    try:
        with _programs_sigterm_handler():
            ray.init(address=named, log_to_driver=False, logging_level=logging.ERROR)
    except (RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()
        raise BrokerUnavailable("ray", f"cannot join the Ray at {named}: {reason[0] if reason else error!r}") from error


def _agree(found: RayFound) -> None:
    """Take the found Ray's way of letting processes in, or say why that cannot be."""
    if found.version is not None and found.version != ray.__version__:
        raise BrokerUnavailable(
            "ray",
            f"the Ray at {found.address} is version {found.version}, this process has {ray.__version__}",
            remedy="install the same version on both sides",
        )
    wanted = os.environ.get(AUTH_MODE, "").lower()
    if wanted and wanted != found.auth_mode:
        raise BrokerUnavailable(
            "ray",
            f"the Ray at {found.address} runs with {AUTH_MODE}={found.auth_mode}, this process with {wanted}: "
            "the actors of one would be ended by the other",
            remedy=f"set {AUTH_MODE}={found.auth_mode} for this process",
        )
    if not wanted:
        os.environ[AUTH_MODE] = found.auth_mode
        Config.initialize("")  # Ray's own way to read the environment again
