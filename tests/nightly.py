"""Run everything that takes too long for `make test`, one part after the other (`make test-nightly`).

    python -m tests.nightly [PART ...]    these parts, or all
    python -m tests.nightly --list        what each part runs, and why it cannot run here

Each part ends with a line: its name, its result, pytest's counts, minutes, and the log file. The other parts run even
if one fails or takes too long. The exit code is 1 if any failed. A part whose tools are missing is reported as not run,
and does not count as failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.rayup.run import reason_not_to as reason_for_no_ray_up

ROOT: Final = Path(__file__).resolve().parents[1]
_PYTEST: Final = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
_SHARED: Final = ("-n", "5", "--no-loadscope-reorder")
_MAKE: Final = ("make", "--no-print-directory")
#: The Pythons that RayMQ supports, by their versions.
_PYTHONS: Final = ((3, 11), (3, 12), (3, 13))
_COUNTS: Final = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+, )*\d+ [a-z]+) in [0-9.]+s", re.MULTILINE)
#: The time between Ctrl-C and the kill of a part.
_LAST_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Part:
    """One line of the report.

    Attributes:
        name: the name on the command line.
        command: the command, which runs in the tree's root.
        hours: the longest time.
        tools: the programs that must be in PATH.
        environment: additional environment variables.
        reason: why the part cannot run here although its tools exist; None if it can.
    """

    name: str
    command: Sequence[str]
    hours: float = 2.0
    tools: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None

    def missing(self) -> str | None:
        """Return why the part cannot run here, None if it can."""
        tools = [tool for tool in self.tools if shutil.which(tool) is None]
        return f"{' and '.join(tools)} not in PATH" if tools else self.reason


def pytest_part(name: str, *arguments: str, hours: float = 2.0) -> Part:
    """Return a part that runs pytest in this environment."""
    return Part(name, (*_PYTEST, *arguments), hours)


def parts() -> list[Part]:
    """Return all parts, the most productive first."""
    return [
        Part("numpy", (*_PYTEST, *_SHARED, "--numpy"), reason=_no_compiled_code()),
        pytest_part("sweeps", *_SHARED, "-m", "sweep and not soak and not long", "--whole-sweeps"),
        pytest_part("fuzz", "-n", "3", "-m", "long and not soak", "tests/fuzz", hours=4.0),
        pytest_part("long", "-n", "4", "--no-loadscope-reorder", "-m", "long and not soak", "--ignore=tests/fuzz"),
        pytest_part("soak", "-m", "soak", "--whole-sweeps", hours=6.0),
        Part("chaos", (sys.executable, "-m", "tests.chaos.failover.run", "--kills", "50"), tools=("ip", "unshare")),
        Part("docs", (*_MAKE, "docs"), tools=("make",)),
        Part("spark4", (*_MAKE, "test-spark4"), tools=("make", "java")),
        *other_pythons(),
        Part(
            "interop-java",
            (*_MAKE, "test-interop", "ARGS=--ignore=tests/interop/test_go_client.py"),
            tools=("make", "mvn", "javac"),
        ),
        Part("interop-go", (*_MAKE, "test-interop", "ARGS=-k test_go_client"), tools=("make", "go")),
        Part("proxy", (*_MAKE, "test-proxy"), tools=("make", "mvn", "java")),
        Part("rocketmq", (*_MAKE, "test-rocketmq"), hours=4.0, tools=("make", "mvn", "javac")),
        Part("rayup", (*_MAKE, "test-rayup"), tools=("make",), reason=reason_for_no_ray_up()),
    ]


def other_pythons() -> Iterator[Part]:
    """Yield a part for each supported Python, which runs the suite in a separate environment."""
    for version in _PYTHONS:
        name = f"python{version[0]}.{version[1]}"
        program = interpreter(name)
        if program is None and version == sys.version_info[:2]:
            continue  # `make test` runs it
        settings = (f"VENV=.venv-{name}", f"PYTHON={program}")
        script = " ".join([*_MAKE, *settings, "env", "&&", f".venv-{name}/bin/python", *_PYTEST[1:], *_SHARED])
        missing = None if program else f"no {name} was found"
        yield Part(name, ("sh", "-c", script), hours=1.5, tools=("make",), reason=missing)


def interpreter(name: str) -> str | None:
    """Return the path of a working interpreter of this name with another version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(name), f"/usr/bin/{name}", f"/usr/local/bin/{name}"]
    found += [str(path) for path in sorted(pyenv.glob(f"versions/*/bin/{name}"), reverse=True)]
    for program in (each for each in found if each is not None and Path(each).exists()):
        code = "import ensurepip, platform; print(platform.python_version())"
        result = subprocess.run([program, "-c", code], capture_output=True, text=True, check=False)
        if result.returncode == 0 and result.stdout.strip() != platform.python_version():
            return program
    return None


def run(part: Part, logs: Path) -> bool:
    """Run a part and print its line; return False if it failed."""
    if (missing := part.missing()) is not None:
        print(f"{part.name}: not run, {missing}", flush=True)
        return True
    log, begun = logs / f"{part.name}.log", time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**_environment(), **part.environment},
            start_new_session=True,
        )
        try:
            result = "passed" if process.wait(part.hours * 3600) == 0 else "FAILED"
        except subprocess.TimeoutExpired:
            result = f"FAILED, not done after {part.hours:g} h"
        finally:
            _end(process)
    counts = _COUNTS.findall(log.read_text("utf-8", "replace"))
    fields = [result, *counts[-1:], f"{(time.monotonic() - begun) / 60:.1f} min", str(log)]
    print(f"{part.name}: {', '.join(fields)}", flush=True)
    return result == "passed"


def _environment() -> dict[str, str]:
    """Return this process's environment without the variables for nested makes."""
    return {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "ARGS")}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a part by Ctrl-C, on which pytest reports running tests, then by SIGKILL."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(_LAST_SECONDS)
            except subprocess.TimeoutExpired:
                continue


def main(arguments: Sequence[str] | None = None, all_parts: Sequence[Part] | None = None) -> int:
    """Run the parts that are named, or all; return the exit code."""
    known = {part.name: part for part in (parts() if all_parts is None else all_parts)}
    parser = argparse.ArgumentParser(prog="make test-nightly ARGS=...", description="The tests that take long.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(known)}; none: all of them")
    parser.add_argument("--list", action="store_true", help="say what each part runs; run nothing")
    parser.add_argument("--logs", type=Path, help="the folder of the logs; without it a new one below build/nightly")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - known.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    chosen = [known[name] for name in options.parts] or list(known.values())
    if options.list:
        for part in chosen:
            missing = part.missing()
            print(f"{part.name}: {' '.join(part.command)}{f' (not run here: {missing})' if missing else ''}")
        return 0
    logs = options.logs or ROOT / "build" / "nightly" / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    logs.mkdir(parents=True, exist_ok=True)
    results = [run(part, logs) for part in chosen]
    return int(not all(results))


def _no_compiled_code() -> str | None:
    if importlib.util.find_spec("raymq_native") is None:
        return "raymq-native is not installed: make test has run all of it in NumPy"
    return None


if __name__ == "__main__":
    sys.exit(main())
