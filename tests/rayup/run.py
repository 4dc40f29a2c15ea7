"""`ray up configs/ray-up-local.yaml`, for real, on three machines that are namespaces of this one.

    python -m tests.rayup.run [--install] [--long] [--faults N] [--folder DIR]

The file is used as it stands, but for what it says is to be replaced (addresses, ssh user and key) and, without
--install, the installation: then the machines use the environment that runs this. It prints what each step took, ends
with 0 if all is well, and leaves no process behind: all of them live in namespaces that end with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.chaos.failover import isolation
from tests.rayup.hosts import HIDDEN, SSHD
from tests.rayup.trial import Failed, Trial

_INSIDE: Final = "RAYMQ_RAYUP_INSIDE"
#: Nothing takes longer than that: what has not ended by then is ended.
MAX_SECONDS: Final = 1_500.0
#: Debian's packages of what is needed, by program.
_PACKAGES: Final = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "ps": "procps",
    "rsync": "rsync",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    SSHD: "openssh-server",
    "unshare": "util-linux",
}


@cache
def reason_not_to() -> str | None:
    """Why it cannot run here; None: it can."""
    missing = {package for program, package in _PACKAGES.items() if shutil.which(program) is None}
    if missing:
        return f"`ray up` on hosts of its own needs: apt-get install {' '.join(sorted(missing))}"
    if os.geteuid():
        return "`ray up` on hosts of its own needs root: an sshd is started on each"
    if any(Path(__file__).resolve().is_relative_to(each) or Path(sys.prefix).is_relative_to(each) for each in HIDDEN):
        return f"the hosts cannot see this tree, which is below one of {', '.join(map(str, HIDDEN))}"
    return isolation.reason_not_to()


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install on each machine, with pip, as the file says")
    parser.add_argument("--long", action="store_true", help="other addresses, too, and all of it a second time")
    parser.add_argument("--faults", type=int, default=0, help="break Ray so many times under load")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed breaks the same things")
    parser.add_argument("--folder", type=Path, default=None, help="keep all files there; else they go if all is well")
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help="end it after so long, whatever it does")
    return parser.parse_args(arguments)


def main() -> int:
    if _INSIDE in os.environ:
        return _inside(options())
    told = options()
    if reason := reason_not_to():
        print(reason)
        return 2
    folder = (told.folder or Path(tempfile.mkdtemp(prefix="raymq-rayup-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ["--folder", str(folder), *[f"--{each}" for each in ("install", "long") if vars(told)[each]]]
    arguments += ["--faults", str(told.faults), "--seed", str(told.seed)]
    if told.install:
        _gather_wheels(folder / "wheels")
    command = isolation.isolated([sys.executable, "-m", "tests.rayup.run", *arguments])
    process = subprocess.Popen(command, env=os.environ | {_INSIDE: "1"}, stdin=subprocess.DEVNULL)
    try:
        ended = process.wait(told.seconds)
    except BaseException as error:
        process.send_signal(
            signal.SIGKILL
        )  # the first process of its namespaces ends with it, and all others with that
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        print(f"not over after {told.seconds:g} s, and ended; files in {folder}")
        return 1
    if ended == 0 and told.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return ended


def _inside(told: argparse.Namespace) -> int:
    try:
        Trial(told.folder, install=told.install).run(long=told.long, faults=told.faults, seed=told.seed)
    except Failed as error:
        print(f"FAILED: {error}\nfiles in {told.folder}", flush=True)
        return 1
    return 0


def _gather_wheels(folder: Path) -> None:
    """RayMQ's own wheels, and those of all that it needs, by pip's usual ways: on the machines there is no Internet."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    tree = Path(__file__).resolve().parents[2]
    wheel = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*wheel, str(tree), str(tree / "native")], check=True, timeout=300)
    own = [str(path) for path in folder.glob("raymq*.whl")]
    requirement = next(
        line for line in (tree / "configs/ray-up-local.yaml").read_text("utf-8").split("'") if "ray[" in line
    )
    subprocess.run(
        [*pip, "download", "--quiet", "--prefer-binary", "--dest", str(folder), requirement, *own],
        check=True,
        timeout=MAX_SECONDS,
    )


if __name__ == "__main__":
    sys.exit(main())
