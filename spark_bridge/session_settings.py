"""Spark's settings for a session on Ray that is small, quiet, and starts fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.spark_placement import Placement

#: Java 17 closes these packages; Spark 3.5, Ray's Java worker and Arrow's memory access use them.
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

#: One garbage collector thread: otherwise each JVM starts one for every core.
_COLLECTOR = "-XX:+UseSerialGC"

#: Only the first compiler, which halves the start time of a JVM without hot loops. Not for executors, which have them.
_FAST_START = "-XX:TieredStopAtLevel=1"

#: The environment of Spark's launcher, a separate JVM that only prints the command of the driver's JVM.
LAUNCHER_ENVIRONMENT = {"SPARK_LAUNCHER_OPTS": f"{_COLLECTOR} {_FAST_START}"}

#: Rows of one Arrow batch for a Python worker. It limits rows, not bytes: 2,048 bodies of 4 KiB are 8 MB.
_ROWS_PER_BATCH = 2_048

MASTER_RESOURCE = "spark.ray.raydp_spark_master.actor.resource."
EXECUTOR_RESOURCE = "spark.ray.raydp_spark_executor.actor.resource."


def spark_settings(
    *, executors: int, cores: int, memory: str, directory: Path, log_settings: Path, placement: Placement
) -> dict[str, str]:
    """Return the settings of one session, for SparkConf.

    `directory` is the session's own, deleted at its end.
    """
    settings = {
        "spark.executor.instances": str(executors),
        "spark.executor.cores": str(cores),
        "spark.executor.memory": memory,
        # RayDP starts three kinds of JVM, each with a setting of its own.
        "spark.driver.extraJavaOptions": f"{_OPENS} {_COLLECTOR} {_FAST_START}",
        "spark.ray.raydp_app_master.extraJavaOptions": f"{_OPENS} {_COLLECTOR} {_FAST_START}",
        "spark.executor.extraJavaOptions": f"{_OPENS} {_COLLECTOR}",
        # Ray's CPUs are for the brokers and the user's own actors. Spark's processes request none, so that they can run
        # on a Ray with one CPU. `executors` and `cores` limit what they use at a time.
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
        # A body may have 4 MiB, and a batch is one value for the JVM's Arrow reader.
        "spark.driver.maxResultSize": "0",
    }
    if os.environ.get("PYTHONPATH"):
        settings["spark.executorEnv.PYTHONPATH"] = os.environ["PYTHONPATH"]
    for resource, amount in placement.resources.items():
        settings[f"{MASTER_RESOURCE}{resource}"] = str(amount)
        settings[f"{EXECUTOR_RESOURCE}{resource}"] = str(amount)
    return settings


#: Settings that are arguments of SparkBridge, and settings that the bridge depends on. A name that ends with a dot is a
#: prefix.
_NOT_THE_USERS: Final = {
    "spark.executor.instances": "use executors=",
    "spark.executor.cores": "use cores=",
    "spark.executor.memory": "use memory=",
    "spark.app.name": "the bridge names its session",
    "spark.master": "Spark runs on Ray",
    "spark.python.daemon.module": "tasks need the bridge's value",
    "spark.log4j.config.file.name": "Spark's output goes to log_file",
    "spark.ray.": "the bridge sets RayDP's settings",
}
#: JVM options: the user's come after ours, so that the user's take precedence.
_ADDED: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def check_user_settings(settings: Mapping[str, str | int | float] | None) -> dict[str, str]:
    """Return the settings of a user in Spark's form.

    Raises:
        InvalidInput: a name is not a Spark setting, a value is not text, a number or a boolean, or the bridge makes the
            setting itself.
    """
    if not isinstance(settings, Mapping | None):
        raise InvalidInput("settings", "a mapping of Spark's settings", settings)
    checked: dict[str, str] = {}
    for name, value in (settings or {}).items():
        if not isinstance(name, str) or not name.startswith("spark."):
            raise InvalidInput("settings", 'names that begin with "spark."', name)
        if not isinstance(value, str | int | float):
            raise InvalidInput("settings", f"text, a number or a truth value for {name}", value)
        for fixed, remedy in _NOT_THE_USERS.items():
            if name == fixed or (fixed.endswith(".") and name.startswith(fixed)):
                raise InvalidInput("settings", "settings that the bridge does not set itself", name, remedy=remedy)
        checked[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return checked


def merge_settings(own: Mapping[str, str], users: Mapping[str, str]) -> dict[str, str]:
    """Merge our settings and the user's, which take precedence."""
    return {**own, **users, **{name: f"{own[name]} {users[name]}" for name in _ADDED if name in users and name in own}}


def python_settings() -> dict[str, str]:
    """Return the environment that makes Spark's Python workers run this interpreter."""
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
