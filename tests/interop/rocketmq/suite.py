"""Build RocketMQ's own test module from its source release with RayMQ's two base classes; run each class in a JVM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.rocketmq.expectations import PACKAGE, expected_failures

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"
HARNESS = HERE / "harness"
RUNNER = "RunClass"
#: The time limit of one class, on a machine with other work.
CLASS_SECONDS = 300
_BUILD_SECONDS = 900

_FAILED = re.compile(r"^failed (\S+): (.*)$", re.MULTILINE)
_RESULT = re.compile(r"^result run=(\d+) failed=(\d+) ignored=(\d+)$", re.MULTILINE)
_OPENED = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("util", "lang")]


class CannotBuild(Exception):
    """A tool is missing, or RocketMQ's source does not compile here."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one class. `failed` has its failed methods with their reasons."""

    name: str
    run: int
    failed: dict[str, str] = field(default_factory=dict)
    #: Why the run did not complete, if so.
    broke_off: str = ""

    @classmethod
    def read(cls, name: str, printed: str, broke_off: str = "") -> Outcome:
        """Parse the output of RunClass."""
        result = _RESULT.search(printed)
        if result is None and not broke_off:
            broke_off = "it told no result"
        return cls(name, int(result[1]) if result else 0, dict(_FAILED.findall(printed)), broke_off)

    @property
    def unexpected(self) -> dict[str, str]:
        """Return the methods that failed and should pass."""
        return {method: why for method, why in self.failed.items() if method not in expected_failures(self.name)}

    @property
    def surprises(self) -> list[str]:
        """Return the methods that passed and should fail."""
        return [] if self.broke_off else sorted(expected_failures(self.name) - self.failed.keys())

    @property
    def is_as_expected(self) -> bool:
        """Return whether exactly the expected methods failed."""
        return not (self.unexpected or self.surprises or self.broke_off)


def names() -> list[str]:
    """Return all classes that can run from outside, without their prefix."""
    return (HERE / "classes.txt").read_text().split()


def chosen(wanted: Iterable[str]) -> list[str]:
    """Return the classes whose names contain one of the texts, in any case; all without texts. ValueError: no match."""
    texts = list(wanted)
    for text in texts:
        if not any(text.lower() in name.lower() for name in names()):
            raise ValueError(f"no class has {text!r} in its name (--list shows them)")
    return [name for name in names() if not texts or any(text.lower() in name.lower() for text in texts)]


def build() -> None:
    """Fetch and compile RocketMQ's test module and its dependencies, if not done yet. Raises CannotBuild."""
    made = TARGET / "classes" / ".made"
    sources = [HERE / "pom.xml", HERE / "classes.txt", *HARNESS.rglob("*.java")]
    if made.is_file() and made.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        raise CannotBuild("mvn and a JDK (11 or newer) are needed to run RocketMQ's own tests")
    _run(["mvn", "-q", "-B", "package"], "RocketMQ's source release cannot be had")
    (module,) = (TARGET / "source").glob("*/test/src")
    tests = module / "test" / "java"
    shutil.rmtree(TARGET / "classes", ignore_errors=True)
    shutil.copytree(module / "test" / "resources", TARGET / "classes")
    _run(
        [
            *("javac", "-nowarn", "-proc:none", "-implicit:class", "-encoding", "UTF-8"),
            *("-d", str(TARGET / "classes"), "-cp", f"{TARGET / 'lib'}/*"),
            # RayMQ's base classes replace RocketMQ's.
            *("-sourcepath", os.pathsep.join(map(str, (HARNESS, module / "main" / "java", tests)))),
            str(HARNESS / f"{RUNNER}.java"),
            *(str(tests / f"{(PACKAGE + name).replace('.', '/')}.java") for name in names()),
        ],
        "RocketMQ's test module does not compile",
    )
    made.touch()


def run(name: str, name_servers: str) -> Outcome:
    """Run one class against a cluster; `name_servers` is "host:port", several joined by ";"."""
    work_folder = TARGET / "home"
    work_folder.mkdir(exist_ok=True)
    command = [
        "java",
        "-Xmx512m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        *_OPENED,
        f"-Duser.home={work_folder}",
    ]
    command += ["-cp", f"{TARGET / 'classes'}{os.pathsep}{TARGET / 'lib'}/*", RUNNER, PACKAGE + name]
    ran = subprocess.Popen(
        command,
        cwd=work_folder,
        env={**os.environ, "NAMESRV_ADDR": name_servers},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        printed, _ = ran.communicate(timeout=CLASS_SECONDS)
    except subprocess.TimeoutExpired:
        ran.kill()
        printed, _ = ran.communicate()
        return Outcome.read(name, printed, f"it was not done after {CLASS_SECONDS} s")
    except BaseException:
        ran.kill()
        ran.communicate()
        raise
    return Outcome.read(name, printed)


def _run(command: list[str], otherwise: str) -> None:
    ran = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    if ran.returncode != 0:
        raise CannotBuild(f"{otherwise}:\n{(ran.stdout + ran.stderr)[-3000:]}")
