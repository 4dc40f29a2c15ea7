"""Spark's settings for a session on Ray that is small, quiet, and starts fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.placement import Placement

#: Java 17 closes these packages; Spark 3.5, Ray's Java worker and Arrow's memory access look into them.
_OPENED_PACKAGES = (
    "java.io",
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.math",
    "java.net",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
_OPENS = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES)

#: One collector thread: on a small machine the JVMs otherwise start one for every core, each.
_COLLECTOR = "-XX:+UseSerialGC"

#: The first compiler only: halves the start of a JVM that runs no hot loop. Not for executors, which do.
_FAST_START = "-XX:TieredStopAtLevel=1"

#: The environment of Spark's launcher: a JVM of its own, which only prints the command of the driver's.
LAUNCHER_ENVIRONMENT = {"SPARK_LAUNCHER_OPTS": f"{_COLLECTOR} {_FAST_START}"}

#: Rows of one Arrow batch handed to a Python worker. It bounds rows, not bytes: 2,048 bodies of 4 KiB are 8 MB.
_ROWS_PER_BATCH = 2_048

MASTER_RESOURCE = "spark.ray.raydp_spark_master.actor.resource."
EXECUTOR_RESOURCE = "spark.ray.raydp_spark_executor.actor.resource."


def spark_settings(
    *, executors: int, cores: int, memory: str, directory: Path, log_settings: Path, placement: Placement
) -> dict[str, str]:
    """Return the settings of one session, for SparkConf. `directory` is the session's own, deleted at its end."""
    settings = {
        "spark.executor.instances": str(executors),
        "spark.executor.cores": str(cores),
        "spark.executor.memory": memory,
        # RayDP starts three kinds of JVM, each with a setting of its own.
        "spark.driver.extraJavaOptions": f"{_OPENS} {_COLLECTOR} {_FAST_START}",
        "spark.ray.raydp_app_master.extraJavaOptions": f"{_OPENS} {_COLLECTOR} {_FAST_START}",
        "spark.executor.extraJavaOptions": f"{_OPENS} {_COLLECTOR}",
        # The brokers and the user's own actors own Ray's CPUs: Spark's processes ask for none, so that a Ray of one
        # CPU can run them. What they may use at a time is set by executors and cores.
        f"{EXECUTOR_RESOURCE}cpu": "0",
        f"{MASTER_RESOURCE}CPU": "0",
        "spark.log4j.config.file.name": str(log_settings),
        "spark.ray.log4j.config.file.name": str(log_settings),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "raymq.spark_bridge.worker_daemon",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ROWS_PER_BATCH),
        "spark.sql.shuffle.partitions": str(max(2, 2 * executors * cores)),
        # One body may be 4 MiB and a batch is one value to the JVM's Arrow reader.
        "spark.driver.maxResultSize": "0",
    }
    if os.environ.get("PYTHONPATH"):
        settings["spark.executorEnv.PYTHONPATH"] = os.environ["PYTHONPATH"]
    for resource, amount in placement.resources.items():
        settings[f"{MASTER_RESOURCE}{resource}"] = str(amount)
        settings[f"{EXECUTOR_RESOURCE}{resource}"] = str(amount)
    return settings


#: What is said by arguments of SparkBridge, and what it does not work without. Of a name with a point at its end all.
_NOT_THE_USERS: Final = {
    "spark.executor.instances": "use executors=",
    "spark.executor.cores": "use cores=",
    "spark.executor.memory": "use memory=",
    "spark.app.name": "the bridge names its session",
    "spark.master": "Spark runs on Ray",
    "spark.python.daemon.module": "tasks need the bridge's own",
    "spark.log4j.config.file.name": "what Spark says is in log_file",
    "spark.ray.": "RayDP's are set by the bridge",
}
#: Options of a JVM: the user's stand behind ours, so that they count where both say the same.
_ADDED: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def users_settings(given: Mapping[str, str | int | float] | None) -> dict[str, str]:
    """The settings that a user gives, as Spark has them.

    Raises:
        InvalidInput: a name is none of Spark's, a value is neither text, number nor truth value, or the bridge makes
            the setting itself.
    """
    if not isinstance(given, Mapping | None):
        raise InvalidInput("settings", "a mapping of Spark's settings", given)
    made: dict[str, str] = {}
    for name, value in (given or {}).items():
        if not isinstance(name, str) or not name.startswith("spark."):
            raise InvalidInput("settings", 'names that begin with "spark."', name)
        if not isinstance(value, str | int | float):
            raise InvalidInput("settings", f"text, a number or a truth value for {name}", value)
        for fixed, remedy in _NOT_THE_USERS.items():
            if name == fixed or (fixed.endswith(".") and name.startswith(fixed)):
                raise InvalidInput("settings", "settings that the bridge does not make itself", name, remedy=remedy)
        made[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return made


def with_users_settings(own: Mapping[str, str], users: Mapping[str, str]) -> dict[str, str]:
    """Our settings and the user's, which count where both say something."""
    return {**own, **users, **{name: f"{own[name]} {users[name]}" for name in _ADDED if name in users and name in own}}


def python_settings() -> dict[str, str]:
    """Return the environment that makes Spark's Python workers run this interpreter."""
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
