"""Test that clients, brokers and replicas of the previous release work with the current one.

Each side runs in a process of its own. tests/fixtures/release/ has the wheel of the previous release;
`actors/wire/protocol_version.py` names its versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.errors import VersionMismatch
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command, Serialization
from raymq.client import Admin, Connection, Message, Producer, PullConsumer
from raymq.storage.directory_format import CURRENT_FORMAT, DirectoryFormat, read_format, write_format
from raymq.storage.version import VERSION
from tests.polling import poll_until
from tests.replica_clients import Clients, numbered
from tests.replica_group import ReplicaGroup

pytestmark = [pytest.mark.integration, pytest.mark.ray, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "release_peer.py"
#: The expected result of `exchange` with any combination of releases.
EXPECTED = {
    "states": ["running"],
    "pulled": [f"m{number:03}" for number in range(51)],
    "queried": [f"m{number:03}" for number in range(5)],
    "numbered": [f"m{number:03}" for number in range(21)],
    "pushed": [f"m{number:03}" for number in range(20)],
    "popped": [f"m{number:03}" for number in range(20)],
    "timed": ["due"],
    "recalled": "WITHDRAWN",
    "written": [f"m{number:03}" for number in range(20)],
}
LEFT = {"plain": EXPECTED["pulled"], "written": EXPECTED["written"], "committed": 51, "states": ["running"]}


@pytest.fixture(scope="module")
def previous_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the previous release and return its folder."""
    (wheel,) = (ROOT / "tests" / "fixtures" / "release").glob("*.whl")
    folder = tmp_path_factory.mktemp("release")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--target", folder, wheel], check=True, timeout=120)
    return folder


def environment(release: Path | None) -> dict[str, str]:
    """Return the environment for a release's process (None: the current release)."""
    return os.environ if release is None else {**os.environ, "PYTHONPATH": str(release)}  # type: ignore[return-value]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", str(PROGRAM), *arguments]


@contextlib.contextmanager
def broker(directory: Path, release: Path | None) -> Iterator[str]:
    """Run a broker and name server, yield the latter's address, stop both cleanly."""
    process = subprocess.Popen(
        command("broker", "broker-a", str(directory)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(release),
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def run_peer(what: str, name_server: str, release: Path | None) -> dict[str, Any]:
    done = subprocess.run(
        command(what, name_server), env=environment(release), stdout=subprocess.PIPE, text=True, check=True, timeout=180
    )
    reported: dict[str, Any] = json.loads(done.stdout)
    code = Path(reported.pop("code"))
    assert code.is_relative_to(ROOT if release is None else release)  # the intended release ran
    return reported


@pytest.mark.long
@pytest.mark.parametrize("old", ["client", "broker"])
def test_client_and_broker_of_two_releases_work_together(tmp_path: Path, previous_release: Path, old: str) -> None:
    client, server = (previous_release, None) if old == "client" else (None, previous_release)
    with broker(tmp_path / "broker-a", server) as name_server:
        assert run_peer("exchange", name_server, client) == EXPECTED
        found = run_peer("look", name_server, None)
        versions = found.pop("versions")
        assert found == LEFT
        assert versions == ([VERSION] if server is None else [""])


@pytest.mark.long
def test_store_directory_is_upgraded(tmp_path: Path, previous_release: Path) -> None:
    directory = tmp_path / "broker-a"
    with broker(directory, previous_release) as name_server:
        assert run_peer("exchange", name_server, previous_release) == EXPECTED
    assert read_format(directory) == DirectoryFormat()
    for _ in range(2):
        with broker(directory, None) as name_server:
            found = run_peer("look", name_server, None)
            assert {name: found[name] for name in LEFT} == LEFT
        assert read_format(directory) == DirectoryFormat(CURRENT_FORMAT, VERSION)


def test_unknown_command_error_names_both_versions(tmp_path: Path, previous_release: Path) -> None:
    async def main(name_server: str) -> None:
        pool = ConnectionPool()
        try:
            assert await pool.version(name_server, 10.0) == 1
            with pytest.raises(VersionMismatch, match="versions 1 to 1 of RayMQ's protocol, this side 1 to 3"):
                await pool.request(name_server, Command(900_999, serialization=Serialization.MSGPACK), 10.0)
        finally:
            await pool.close()

    with broker(tmp_path / "broker-a", previous_release) as name_server:
        asyncio.run(main(name_server))


# Replicas


class MixedGroup(ReplicaGroup):
    """Run a replica group in which some replicas have the previous release."""

    def __init__(self, folder: Path, previous_release: Path, *old: int) -> None:
        super().__init__(folder)
        self.previous_release = previous_release
        self.old = set(old)

    def start(self, *numbers: int, **changes: Any) -> None:
        for number in numbers or range(1, self.count + 1):
            self.up[number] = subprocess.Popen(
                command("replica", json.dumps(self.spec(number, **changes))),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(self.previous_release if number in self.old else None),
            )
            self.addresses[number] = self.address_of(self.up[number])


@pytest.mark.long
def test_group_is_upgraded_by_stop_and_start(tmp_path: Path, previous_release: Path) -> None:
    with MixedGroup(tmp_path, previous_release, 1, 2) as group:
        group.begin()
        clients = Clients(group)
        with contextlib.closing(clients.mq):
            clients.admin.create_topic("t", queues=2)
            clients.send(*numbered(0, 100))
            queue = clients.pull.queues("t")[0]
            clients.pull.commit(queue, 7)
            group.await_end(2, of=1)
            for number in (1, 2):
                group.stop(number)
            group.old.clear()
            group.start(1, 2)
            group.elect()
            group.await_in_sync(1, 2)
            clients.send(*numbered(100, 150))
            assert set(clients.bodies()) == set(numbered(0, 150))
            assert clients.pull.committed(queue) == 7
    for number in (1, 2):
        assert read_format(group.directory(number)).number == CURRENT_FORMAT


@pytest.mark.long
def test_master_refuses_replica_with_older_state_format(tmp_path: Path, previous_release: Path) -> None:
    with MixedGroup(tmp_path, previous_release) as group:
        group.begin()
        group.kill(2)
        poll_until(lambda: group.state.in_sync == {1}, 60)
        group.previous_release, group.old = previous_release, {2}
        group.start(2)
        group._await(2, lambda status: "upgrade the RayMQ of the replica" in status.trouble, 60, "is refused")
        assert "supports state formats up to 1" in group.status(2).trouble
        assert group.state.in_sync == {1}
        group.stop(2)
        group.stop(1)
        # The master gets a release that writes the next format.
        newer = tmp_path / "newer"
        newer.mkdir()
        (newer / "sitecustomize.py").write_text(
            f"from raymq.storage import directory_format\ndirectory_format.CURRENT_FORMAT = {CURRENT_FORMAT + 1}\n"
        )
        group.previous_release, group.old = newer, {1}
        group.start(1)
        group.elect(1)
        group.await_serving(1)
        assert read_format(group.directory(1)).number == CURRENT_FORMAT + 1
        group.old = set()
        group.start(2)
        group._await(2, lambda status: "upgrade the RayMQ of the replica" in status.trouble, 60, "is refused")
        assert f"supports state formats up to {CURRENT_FORMAT}" in group.status(2).trouble


@pytest.mark.long
def test_replica_refuses_state_of_an_older_format(tmp_path: Path, previous_release: Path) -> None:
    with MixedGroup(tmp_path, previous_release, 1) as group:
        group.found()
        group.start(1)
        group.await_claimed(1)
        group.elect(1)
        group.await_serving(1)
        group.start(2)
        group._await(2, lambda status: "stop all brokers of the group" in status.trouble, 60, "refuses it")
        assert group.state.in_sync == {1}


def test_directory_of_newer_release_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "broker-a"
    directory.mkdir()
    write_format(directory, DirectoryFormat(CURRENT_FORMAT + 1, "9.8.7"))
    done = subprocess.run(
        command("broker", "broker-a", str(directory)), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode
    assert "FormatTooNew" in done.stderr
    assert "RayMQ 9.8.7 or later" in done.stderr
    assert sorted(each.name for each in directory.iterdir()) == ["raymq-format.json", "raymq-format.json.bak"]


def copy_as_release(folder: Path, version: str) -> None:
    """Copy this tree's code as another release, which writes the same directory format."""
    for package in (ROOT / ".links" / "raymq").iterdir():
        shutil.copytree(package, folder / "raymq" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    module = folder / "raymq" / "storage" / "version.py"
    text = module.read_text()
    assert f'"{VERSION}"' in text
    module.write_text(text.replace(f'"{VERSION}"', f'"{version}"'))


@pytest.mark.long
def test_rolling_upgrade_keeps_clients_running(tmp_path: Path) -> None:
    """Upgrade on a real Ray: change the code's folder, then restart brokers one by one.

    Both releases have the same directory format: across formats a group is stopped and started. Running processes keep
    their release: modules that they import late must not come from another one.
    """
    previous_release = tmp_path / "previous"
    copy_as_release(previous_release, "0.0.9")
    site = tmp_path / "site"  # as the environment's site-packages
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(site)!r})\n")
    (site / "raymq.pth").write_text(f"{previous_release}\n")
    process = subprocess.Popen(
        command("cluster", str(tmp_path / "data"), "upgrade"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(site),
    )
    assert process.stdout is not None
    try:
        *_, name_server, ray_address = process.stdout.readline().split()
        sent: list[bytes] = []
        over = threading.Event()

        def send(mq: Connection) -> None:
            with Producer(mq, "p", timeout=30, retries=100) as producer:
                while not over.is_set():
                    body = b"m%05d" % len(sent)
                    assert producer.send(Message("t", body)).status is SendStatus.SEND_OK
                    sent.append(body)

        with Connection([name_server]) as mq, Admin(mq) as admin, ThreadPoolExecutor(1) as threads:
            admin.create_topic("t", queues=1)
            assert [each.version for each in admin.cluster_info().brokers] == ["0.0.9"] * 2
            sending = threads.submit(send, mq)
            try:
                (site / "raymq.pth").write_text(f"{ROOT / '.links'}\n")
                raymq = [sys.executable, "-P", "-c", "from raymq.cluster.command import main; main()"]
                where = ["--namespace", "upgrade", "--address", ray_address]
                subprocess.run(
                    [*raymq, *where, "broker", "restart", "--rolling"], env=environment(site), check=True, timeout=150
                )
                reported = admin.cluster_info().brokers
                assert [(each.state, each.version) for each in reported] == [("running", VERSION)] * 2
            finally:
                over.set()
            sending.result(60)
            with PullConsumer(mq, "g") as pull:
                (queue,) = pull.queues("t")
                pull.seek(queue, "earliest")
                found: list[bytes] = []
                while len(found) < pull.offsets(queue)[1]:
                    found += [each.body for each in pull.poll(queue, 1_000, timeout=5.0)]
            assert sent
            assert set(sent) <= set(found)
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=60)
        process.kill()
        process.communicate()
