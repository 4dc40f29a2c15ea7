"""One Spark application on Ray, made of RayDP's parts.

It starts quietly and leaves no process behind. RayDP's own `init_spark` is not used: it takes the driver's Ray
namespace (where the names of the executors of two applications would collide), keeps a process-wide singleton that
fails every later start after a first failure, and leaves the driver's JVM running when it stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from raymq.actors.java import temporary_environment
from raymq.client.errors import RayMQError
from raymq.spark_bridge.executor_watchdog import ExecutorWatchdog
from raymq.spark_bridge.raydp_imports import SPARK_JAVAAGENT, RayDPSparkMaster, SparkCluster, minimal_raydp
from raymq.spark_bridge.session_settings import LAUNCHER_ENVIRONMENT, python_settings

#: pyspark allows one Spark driver per process (SparkContext keeps its JVM in class attributes).
_one_at_a_time = threading.Lock()

#: Ray's built-in resources, which must not be passed as custom resources.
_BUILT_IN = ("CPU", "memory")

_PlainMaster: Any = RayDPSparkMaster.__ray_metadata__.modified_class.__ray_actor_class__


class QuietMaster(_PlainMaster):  # type: ignore[misc]
    """RayDP's master, with its JVM's output in a file and a namespace of its own.

    The executors of the application are named in that namespace.
    """

    def __init__(self, configs: dict[str, str], namespace: str, log: str) -> None:
        super().__init__(configs)
        self._namespace = namespace
        self._log = Path(log)

    def start_up(self, popen_kwargs: dict[str, Any] | None = None) -> None:
        """Start the JVM with RayDP's application master; return when executors can join it."""
        # The driver's directory does not exist on another machine.
        log = self._log if self._log.parent.is_dir() else Path(os.devnull)
        with log.open("ab") as output, minimal_raydp():
            super().start_up({**(popen_kwargs or {}), "stdout": output, "stderr": output})

    def _generate_ray_configs(self) -> str:
        options = json.loads(super()._generate_ray_configs())
        options["ray.job.namespace"] = self._namespace
        options["ray.logging.level"] = "ERROR"
        return json.dumps(options)


class _SparkCluster(SparkCluster):  # type: ignore[misc]
    """RayDP's preparation of settings (class paths, agent), with our master and no session."""

    def __init__(self, name: str, settings: dict[str, str], log: Path) -> None:
        self._log = log
        self.master: Any = None
        self._started: Any = None
        super().__init__(
            name,
            int(settings["spark.executor.instances"]),
            int(settings["spark.executor.cores"]),
            settings["spark.executor.memory"],
            enable_hive=False,
            configs=settings,
        )

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings, including those that RayDP adds."""
        settings: dict[str, str] = self._configs
        return settings

    def master_url(self, timeout: float) -> str:
        """Wait until the master runs, and return its URL for Spark's driver."""
        begin = time.monotonic()
        ray.get(self._started, timeout=timeout)
        url: str = ray.get(self.master.get_master_url.remote(), timeout=timeout - (time.monotonic() - begin))
        return url

    def _prepare_spark_configs(self) -> None:
        """Prepare RayDP's settings, with the agent's path quoted.

        The path may contain a blank, and Spark splits these options at blanks.
        """
        super()._prepare_spark_configs()
        agent, options = f"-javaagent:{self._configs[SPARK_JAVAAGENT]}", "spark.driver.extraJavaOptions"
        self._configs[options] = self._configs[options].replace(agent, f'"{agent}"')

    def _set_up_master(self, resources: dict[str, float], kwargs: Any) -> None:  # noqa: ARG002 - RayDP's signature
        """Start the master without waiting; RayDP calls this from its constructor.

        `master_url` waits for the master.
        """
        name = self._app_name
        options = {
            "name": f"{name}_SPARK_MASTER",
            "namespace": name,
            "num_cpus": resources.get("CPU", 0),
            "resources": {resource: amount for resource, amount in resources.items() if resource not in _BUILT_IN},
            "max_restarts": 0,
        }
        self.master = ray.remote(QuietMaster).options(**options).remote(self._configs, name, str(self._log))
        self._started = self.master.start_up.remote()


class SparkApplication:
    """A running Spark on Ray: `.session` until `close()`.

    Only one per process at a time. Not for use by several threads while it starts or closes.

    Raises:
        RayMQError: another one runs in this process; the JVMs did not start; no executor registered within `timeout`.
    """

    def __init__(self, name: str, settings: dict[str, str], *, java: dict[str, str], log: Path, timeout: float) -> None:
        if not _one_at_a_time.acquire(blocking=False):
            raise RayMQError("a SparkBridge is open in this process", remedy="close it, or use its .spark")
        self._interrupt = signal.getsignal(signal.SIGINT)
        self._python_path = list(sys.path)
        self._cluster: _SparkCluster | None = None
        self._gateway: Any = None
        self._session: SparkSession | None = None
        self._watch: ExecutorWatchdog | None = None
        self._open = True
        try:
            if SparkContext._active_spark_context is not None:  # noqa: SLF001 - pyspark has no public way to ask
                raise RayMQError("a Spark session is open in this process", remedy="stop it first")
            deadline = time.monotonic() + timeout
            self._cluster = _SparkCluster(name, settings, log)
            self._session = self._open_session(name, self._cluster, java, log, deadline)
            _load_classes(self._session)  # While the executors start.
            self._wait_for_executors(int(settings["spark.executor.instances"]), deadline)
            self._watch = ExecutorWatchdog(self._count, self._cancel_jobs)
        except BaseException:
            self.close()
            raise

    @property
    def session(self) -> SparkSession:
        """Return the Spark session. Raise RayMQError after close()."""
        if self._session is None:
            raise RayMQError("the Spark session is closed")
        return self._session

    def executors(self) -> int:
        """Return the number of executors that are registered now."""
        tracker: Any = self.session.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001 - not in pyspark's public interface
        statuses = tracker.getExecutorInfos()
        return len(statuses) - 1  # The driver is counted too.

    def close(self, timeout: float = 20.0) -> None:
        """Stop Spark and end all its processes: the executors, the master, the driver's JVM."""
        if not self._open:
            return
        self._open = False
        try:
            if self._watch is not None:
                self._watch.close()
            self._close_session()
            self._close_master(timeout)
            self._close_gateway(timeout)
        finally:
            sys.path[:] = [entry for entry in sys.path if entry in self._python_path]
            if threading.current_thread() is threading.main_thread() and self._interrupt is not None:
                signal.signal(signal.SIGINT, self._interrupt)
            _one_at_a_time.release()

    def _count(self) -> int | None:
        try:
            return self.executors()
        except (Py4JError, OSError):
            return None

    def _cancel_jobs(self) -> None:
        with contextlib.suppress(Py4JError, OSError):
            self.session.sparkContext.cancelAllJobs()

    def _open_session(
        self, name: str, cluster: _SparkCluster, java: dict[str, str], log: Path, deadline: float
    ) -> SparkSession:
        conf = SparkConf(loadDefaults=False).setAppName(name).setAll(list(cluster.settings.items()))
        with temporary_environment({**java, **python_settings(), **LAUNCHER_ENVIRONMENT}), log.open("ab") as output:
            self._gateway = launch_gateway(conf, {"stdout": output, "stderr": output})
            conf.setMaster(cluster.master_url(max(1.0, deadline - time.monotonic())))
            context = SparkContext(conf=conf, gateway=self._gateway)
        return SparkSession(context)

    def _wait_for_executors(self, expected: int, deadline: float) -> None:
        while (present := self.executors()) < expected:
            if time.monotonic() > deadline:
                raise RayMQError(
                    f"{present} of {expected} Spark executors started in time",
                    remedy="the Ray cluster may lack the memory they ask for: see `ray status`",
                )
            time.sleep(0.05)

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Py4JError, OSError):  # The JVM has ended, and so has its session.
                session.stop()
        SparkSession._instantiatedSession = None  # noqa: SLF001

    def _close_master(self, timeout: float) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is None or cluster.master is None or not ray.is_initialized():
            return
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(cluster.master.stop.remote(True), timeout=timeout)
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(cluster.master)

    def _close_gateway(self, timeout: float) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is None:
            return
        # pyspark keeps these for the process's next session, which would use a JVM that has ended.
        SparkContext._gateway = None  # noqa: SLF001
        SparkContext._jvm = None  # noqa: SLF001
        with contextlib.suppress(Py4JError, OSError):
            gateway.shutdown()
        process: subprocess.Popen[bytes] = gateway.proc
        if process.stdin is not None:
            process.stdin.close()  # The JVM ends when its standard input is closed.
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _load_classes(session: SparkSession) -> None:
    """Load the classes for the first job in the driver's JVM, without running a job."""
    frame = session.range(1).selectExpr("cast(id AS STRING) AS value").mapInArrow(_as_it_is, "value STRING")
    frame._jdf.queryExecution().toRdd()  # noqa: SLF001 - pyspark has no public way to plan without a run


def _as_it_is(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return batches
