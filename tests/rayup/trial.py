"""What is tried with a cluster that `ray up` has made: messages, a lost host that comes back, stop, down, up again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import yaml

from tests.polling import poll_until
from tests.rayup.hosts import HOME, Hosts
from tests.rayup.ray_hosts import LOAD_PAUSE_SECONDS, RayHosts
from tests.rayup.ray_verdict import broken_under_load

_TREE: Final = Path(__file__).resolve().parents[2]
CLUSTER_FILE: Final = _TREE / "configs" / "ray-up-local.yaml"
_EXCHANGE: Final = Path(__file__).with_name("exchange.py")
#: The head and two workers.
HEAD: Final = "h1"
WORKERS: Final = ("h2", "h3")
#: How long a step may take at most; installing takes longer.
_STEP_SECONDS: Final = 180.0
_UP_SECONDS: Final = 300.0
_INSTALL_SECONDS: Final = 600.0
_MESSAGES: Final = 60


class Failed(Exception):
    """A step did not do what it should."""


class Trial:
    """One run, whose files are in `folder`."""

    def __init__(self, folder: Path, *, install: bool) -> None:
        self._folder = folder
        self._install = install
        self._file = folder / "cluster.yaml"
        self._log = folder / "commands.log"
        self._bin = Path(sys.executable).parent
        self._broken: RayHosts | None = None
        self._environment = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "HOME": str(folder / "launcher"),
            "TERM": "dumb",
            "RAY_AUTH_MODE": "token",
            "PYTHONWARNINGS": "ignore",
        }

    def run(self, *, long: bool, faults: int = 0, seed: int = 0) -> None:
        """All steps; raises Failed at the first one that is not right.

        Args:
            faults: how many times Ray is broken under load.
        """
        self._own_tmp()
        with _told("three hosts with sshd"):
            hosts = Hosts(self._folder, [HEAD, *WORKERS]).__enter__()
        self._write_cluster_file(hosts)
        if self._install:
            self._let_pip_find_wheels(hosts)
        began = time.time()
        with _told("ray up, until RayMQ runs on three hosts"):
            self._up()
        with _told("a job that produces and consumes"):
            first = self._exchange()["first"]
        _say(f"from `ray up` to the first message: {first - began:.1f} s")
        with _told("all copies are in sync"):
            self._await_copies(hosts)
        with _told("ray exec: raymq cluster status"):
            self._exec("raymq cluster status")
        self._lose_a_host(hosts, WORKERS[-1])
        if faults:
            self._break_ray(hosts, faults, seed)
        if long:
            self._move_a_host(hosts, WORKERS[0])
            self._restart_the_head(hosts)
        with _told("raymq cluster stop"):
            self._exec("raymq cluster stop")
        if self._broken is not None and (found := self._broken.differing_copies()):
            raise Failed("; ".join(found))
        with _told("ray down, and ray stop on the workers: no process is left"):
            self._down(hosts)
        if long:
            self._begin_again(hosts)
        hosts.__exit__(None, None, None)

    def _lose_a_host(self, hosts: Hosts, lost: str) -> None:
        with _told("a host is killed under load: its brokers' replicas take over, nothing is lost"):
            slowest = self._exchange(lambda: hosts.kill(lost))["slowest_send"]
        _say(f"the slowest send: {slowest:.1f} s")
        hosts.start(lost, named="another-name")
        with _told("it is back with another name: Ray is started on it, and all copies are in sync"):
            self._await_copies(hosts)

    def _break_ray(self, hosts: Hosts, faults: int, seed: int) -> None:
        """A nemesis, and the verdict on what clients were told meanwhile."""
        with _told("clients work"):
            cluster = self._broken = RayHosts(self._folder, hosts, self._up, lambda: self._why_not_whole(hosts))
            cluster.start_load(seed, LOAD_PAUSE_SECONDS)
        with _told(f"Ray is broken {faults} times, with seed {seed}"):
            verdict = broken_under_load(cluster, faults, seed)
        _say(verdict.table())
        if not verdict.is_good:
            raise Failed("Ray broken under load: a promise was broken, or something did not come back")

    def _move_a_host(self, hosts: Hosts, moved: str) -> None:
        """As in a cloud: the disk is put into another machine, which starts Ray by the file's own commands."""
        with _told("raymq cluster leave on a host"):
            self._ssh(hosts, moved, "source ~/.bashrc; raymq cluster leave")
        hosts.kill(moved)
        hosts.move(moved)
        hosts.start(moved, named="moved")
        with _told("its disk is in a host of another name and address: all copies are in sync"):
            made = yaml.safe_load(self._file.read_text("utf-8"))
            lines = [
                "source ~/.bashrc",
                f"export RAY_HEAD_IP={hosts.address(HEAD)}",
                *made["worker_start_ray_commands"],
            ]
            (hosts.home(moved) / "start.sh").write_text("\n".join(lines), "utf-8")
            self._ssh(hosts, moved, "bash start.sh")
            self._await_copies(hosts)
        with _told("all brokers take messages, nothing is lost"):
            self._exchange()

    def _restart_the_head(self, hosts: Hosts) -> None:
        """`ray up` on a running cluster stops Ray on the head, which forgets nothing, and starts it and RayMQ again."""
        self._write_cluster_file(hosts)
        with _told("ray up on the running cluster: all copies are in sync"):
            self._up()
            self._await_copies(hosts)
        with _told("nothing is lost"):
            self._exchange()

    def _begin_again(self, hosts: Hosts) -> None:
        for number, name in enumerate(hosts.names):
            hosts.kill(name)
            hosts.start(name, named=f"renamed-{number}")
        self._write_cluster_file(hosts)
        with _told("ray up again, with other names of all hosts"):
            self._up()
        with _told("all messages are there, and new ones"):
            self._exchange()
        with _told("raymq cluster stop, ray down"):
            self._exec("raymq cluster stop")
            self._down(hosts)

    def _own_tmp(self) -> None:
        """What Ray keeps of a cluster where `ray up` is called lies in /tmp/ray: here, in the namespaces' own."""
        (self._folder / "launcher").mkdir(exist_ok=True)
        Path("/tmp/ray").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/tmp/ray"], check=True)
        self._ray("get-auth-token", "--generate")

    def _write_cluster_file(self, hosts: Hosts) -> None:
        """The file, with what it says is to be replaced."""
        made = yaml.safe_load(CLUSTER_FILE.read_text("utf-8"))
        workers = [hosts.address(name) for name in WORKERS]
        made["provider"] |= {"head_ip": hosts.address(HEAD), "worker_ips": workers}
        made["auth"] = {"ssh_user": "root", "ssh_private_key": str(hosts.key)}
        mounts = made["file_mounts"]
        mounts["~/raymq.yaml"] = str(_TREE / mounts["~/raymq.yaml"])
        if self._install:
            mounts["~/raymq-dist"] = str(self._folder / "wheels")
        else:
            del mounts["~/raymq-dist"]
            install, *rest = [line for line in made["setup_commands"] if "pip install" not in line]
            assert "venv" in install
            made["setup_commands"] = [f"ln -sfn {self._bin.parent} ~/raymq-env", *rest]
        self._file.write_text(yaml.safe_dump(made, sort_keys=False), "utf-8")

    def _let_pip_find_wheels(self, hosts: Hosts) -> None:
        """The hosts have no Internet. The wheels are for the Python that runs this, so it is theirs, too.

        A wheel of a version before is there already, as after an upgrade: `ray up` takes no file away.
        """
        for name in hosts.names:
            old = hosts.home(name) / "raymq-dist" / "raymq-0.0.1-py3-none-any.whl"
            old.parent.mkdir()
            old.touch()
            os.utime(old, (0, 0))
            (hosts.home(name) / ".config/pip").mkdir(parents=True)
            text = f"[global]\nno-index = true\nfind-links = {HOME}/raymq-dist\n"
            (hosts.home(name) / ".config/pip/pip.conf").write_text(text, "ascii")
            (hosts.home(name) / ".bashrc").write_text(f"export PATH={sys.base_prefix}/bin:$PATH\n", "utf-8")

    def _up(self) -> None:
        seconds = _INSTALL_SECONDS if self._install else _UP_SECONDS
        self._ray("up", "-y", "--no-config-cache", str(self._file), seconds=seconds)

    def _down(self, hosts: Hosts) -> None:
        self._ray("down", "-y", str(self._file))
        for name in WORKERS:
            self._ssh(hosts, name, "source ~/.bashrc; ray stop")
        poll_until(lambda: not self._left(hosts), _STEP_SECONDS, "no process left on any host")

    def _exchange(self, under_way: Callable[[], None] | None = None) -> dict[str, Any]:
        """Run the job on the head; what it says, if nothing is lost and every broker took messages.

        Args:
            under_way: done when its first messages are acknowledged; then it takes 15 s.

        Ray's job server comes with ray[default]. Without it `ray submit` sends the program and runs it.
        """
        given = [str(_MESSAGES), "0.25" if under_way else "0", f"{HOME}/acknowledged"]
        if self._install:
            self._ray("rsync-up", str(self._file), str(_EXCHANGE), f"{HOME}/exchange.py")
            command = ["exec", str(self._file), f"ray job submit -- python {HOME}/exchange.py {' '.join(given)}"]
        else:
            command = ["submit", str(self._file), str(_EXCHANGE), "--", *given]
        if under_way is None:
            said = self._ray(*command)
        else:
            acknowledged = self._folder / HEAD / "home" / "acknowledged"
            before = acknowledged.stat().st_size
            with ThreadPoolExecutor(1) as executor:
                running = executor.submit(self._ray, *command)
                poll_until(lambda: acknowledged.stat().st_size > before or running.done(), _STEP_SECONDS, "a message")
                under_way()
                said = running.result()
        (line,) = [each for each in said.splitlines() if each.startswith("EXCHANGED ")]
        told: dict[str, Any] = json.loads(line.removeprefix("EXCHANGED "))
        if told["lost"] or not told["all_consumed"] or len(told["brokers"]) != 3:
            raise Failed(f"the exchange: {told}")
        return told

    def _await_copies(self, hosts: Hosts) -> None:
        poll_until(
            lambda: not self._why_not_whole(hosts), _STEP_SECONDS, "two copies of each broker in sync, and all keepers"
        )

    def _why_not_whole(self, hosts: Hosts) -> str:
        """What is missing; "": nothing."""
        status = [
            str(self._bin / "raymq"),
            "--name-servers",
            f"{hosts.address(HEAD)}:9876",
            "cluster",
            "status",
            "--json",
        ]
        try:
            said = self._command(status)
        except Failed as error:
            return str(error)
        told = json.loads(said[said.index("{") : said.rindex("}") + 1])
        quiet = [each["address"] for each in told["keepers"] if each["state"] != "running" or not each["voter"]]
        running = [each for each in told["brokers"] if each["state"] == "running"]
        masters = [each for each in running if each["role"] == "master"]
        whole = [each["name"] for each in masters if len(each["in_sync"]) == 2]
        if not quiet and len(running) == 6 and len(whole) == len(masters) == 3:
            return ""
        return (
            f"{len(running)} of 6 brokers run, {', '.join(whole) or 'none'} in sync, keepers without a voice: {quiet}"
        )

    def _left(self, hosts: Hosts) -> list[str]:
        return [line for name in hosts.names for line in hosts.processes(name)]

    def _exec(self, command: str) -> str:
        return self._ray("exec", str(self._file), command)

    def _ssh(self, hosts: Hosts, name: str, command: str) -> str:
        given = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        return self._command(["ssh", "-i", str(hosts.key), *given, f"root@{hosts.address(name)}", command])

    def _ray(self, *arguments: str, seconds: float = _STEP_SECONDS) -> str:
        return self._command([str(self._bin / "ray"), *arguments], seconds)

    def _command(self, command: Sequence[str], seconds: float = _STEP_SECONDS) -> str:
        """What it prints; Failed if it does not end well in time."""
        with self._log.open("a") as log, (self._folder / "command.out").open("w+") as out:
            print(f"\n$ {' '.join(command)}", file=log, flush=True)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self._environment, start_new_session=True
            )
            try:
                ended: int | str = process.wait(seconds)
            except subprocess.TimeoutExpired:
                ended = f"not within {seconds:g} s"
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            out.seek(0)
            said = out.read()
            print(said, file=log)
        if ended != 0:
            raise Failed(f"{' '.join(command)}: {ended}\n" + "\n".join(said.splitlines()[-25:]))
        return said


def _say(what: str) -> None:
    print(f"{'':9}   {what}", flush=True)


@contextlib.contextmanager
def _told(step: str) -> Iterator[None]:
    """Say what the block took; what it raises is Failed."""
    began = time.monotonic()
    try:
        yield
    except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
        raise Failed(f"{step}: {error}") from error
    print(f"{time.monotonic() - began:7.1f} s   {step}", flush=True)
