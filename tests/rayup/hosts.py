"""Machines for `ray up` on one machine: each has a network, processes, a home, a /tmp, a name and an sshd of its own.

    with Hosts(folder, ["h1", "h2"]) as hosts:
        hosts.kill("h1")                    # its power goes
        hosts.start("h1", named="other")    # and comes back; what is in its home is there, and it has another name

They are made in the namespaces of the caller, who has some of his own (`tests.chaos.failover.isolation`), and end with
them at the latest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.chaos.failover.network import OBSERVER, Network
from tests.polling import poll_until

#: What a host's first process does before it becomes its sshd. $1 the host's folder, $2 its name, $3 its home, $4
#: the sshd, $5 a way out: it leads nowhere, but by it Ray finds out which address is the machine's own.
_BECOME_HOST: Final = """
set -e
hostname "$2"
mount --make-rprivate /
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/no-dns" /etc/resolv.conf
mount --bind "$1/passwd" /etc/passwd
mount -t tmpfs -o mode=1777,size=2g tmpfs /dev/shm
mount --bind "$1/home" "$3"
mount --bind "$1/tmp" /tmp
ip link set lo up
ip route replace default via "$5"
cd "$3"
exec "$4" -D -e -f "$3/.sshd/config"
"""
_SSHD: Final = """
Port 22
HostKey {home}/.sshd/host_key
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
MaxStartups 100
Subsystem sftp internal-sftp
"""
#: The home of root on every host; not /root, where an interpreter may be installed.
HOME: Final = Path("/mnt")
#: What of this machine is not to be seen on hosts.
HIDDEN: Final = (HOME, Path("/tmp"))
SSHD: Final = "/usr/sbin/sshd"
_UP_SECONDS: Final = 20.0


class Hosts:
    """The machines, by what they are called at first. All are up once it is entered."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._network = Network(names)
        self._first: dict[str, subprocess.Popen[bytes]] = {}
        self._moved: dict[str, str] = {}
        self.key = folder / "key"

    def __enter__(self) -> Self:
        Path("/run/sshd").mkdir(exist_ok=True)
        _make_key(self.key)
        self._network.__enter__()
        for name in self._network.hosts:
            self._furnish(name)
            self.start(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self.names:
            self.kill(name)
        self._network.__exit__(kind, error, trace)

    @property
    def names(self) -> list[str]:
        """What they are called at first."""
        return list(self._network.hosts)

    def address(self, name: str) -> str:
        """Its IPv4 address."""
        return self._moved.get(name, self._network.address(name))

    def move(self, name: str) -> None:
        """Give it another address; it is off."""
        address = f"{self.address(name)}7"  # 10.77.0.2 is 10.77.0.27 then
        for command in (["flush", "dev", "eth0"], ["add", f"{address}/24", "dev", "eth0"]):
            subprocess.run(["ip", "-n", name, "addr", *command], check=True, timeout=_UP_SECONDS)
        self._moved[name] = address

    def home(self, name: str) -> Path:
        """Its home, as it is seen from outside."""
        return self._folder / name / "home"

    def start(self, name: str, named: str | None = None) -> None:
        """Turn it on, and wait for its sshd.

        Args:
            named: what it calls itself from now on.
        """
        host = self._folder / name
        own = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--mount-proc"]
        inside = [*self._network.inside(name), *own, "sh", "-c", _BECOME_HOST, "sh"]
        with (host / "sshd.log").open("ab") as log:
            self._first[name] = subprocess.Popen(
                [*inside, str(host), named or name, str(HOME), SSHD, OBSERVER],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "HOME": str(HOME), "TERM": "dumb"},
            )
        poll_until(lambda: self._listens(name), _UP_SECONDS, f"the sshd of {name}; see {host / 'sshd.log'}")

    def is_on(self, name: str) -> bool:
        """Whether it has power."""
        return name in self._first

    def kill(self, name: str) -> None:
        """Take its power: every process of it is gone at once. One that is off stays so."""
        if self.is_on(name):
            process = self._first.pop(name)
            process.send_signal(signal.SIGKILL)
            process.wait(_UP_SECONDS)

    def signal(self, name: str, program: str, number: signal.Signals) -> None:
        """Send a signal to every process of it whose program is called so; to none where it is off.

        An actor of Ray is called `ray::CLASS`, and while it does something `ray::CLASS.METHOD`.
        """
        if self.is_on(name):
            listed = [line.split(maxsplit=1) for line in self._ps(name, "pid=,args=")]
            found = [pid for pid, args in listed if _program(args) == program]
            if found:
                self._run(name, "kill", f"-{number.value}", *found)

    def processes(self, name: str) -> list[str]:
        """The command lines of what runs there, its sshd left out."""
        return [line for line in self._ps(name, "args=") if not line.startswith(("sshd:", SSHD, "ps "))]

    def _ps(self, name: str, columns: str) -> list[str]:
        return self._run(name, "ps", "-eo", columns).splitlines()

    def _run(self, name: str, *command: str) -> str:
        inside = ["nsenter", "--target", str(self._sshd(name)), "--pid", "--mount", *command]
        return subprocess.run(inside, check=True, capture_output=True, text=True, timeout=_UP_SECONDS).stdout

    def _furnish(self, name: str) -> None:
        host = self._folder / name
        for folder in ("home/.ssh", "home/.sshd", "tmp"):
            (host / folder).mkdir(parents=True)
        (host / "tmp").chmod(0o1777)
        names = [f"{self.address(each)} {each}" for each in self.names]
        (host / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]), "ascii")
        (host / "no-dns").touch()
        (host / "passwd").write_text(f"root:x:0:0:root:{HOME}:/bin/bash\n{_others()}", "ascii")
        (host / "home/.ssh/authorized_keys").write_bytes(self.key.with_suffix(".pub").read_bytes())
        _make_key(host / "home/.sshd/host_key")
        (host / "home/.sshd/config").write_text(_SSHD.format(home=HOME), "ascii")

    def _sshd(self, name: str) -> int:
        """The id of its first process, seen from outside."""
        parent = self._first[name].pid
        return int(Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii").split()[0])

    def _listens(self, name: str) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.address(name), 22), timeout=1.0) as connected:
            return connected.recv(4) == b"SSH-"
        return False


def _program(arguments: str) -> str:
    return Path(arguments.split(maxsplit=1)[0]).name.partition(".")[0]


def _others() -> str:
    """Of the machine's users all but root."""
    lines = Path("/etc/passwd").read_text("ascii").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("root:"))


def _make_key(file: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=_UP_SECONDS)
