"""Clients, brokers and replicas of the RayMQ of before work with those of today, each in a process of its own.

tests/fixtures/release/ has the wheel of before; what its versions are, `actors/wire/protocol_version.py` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
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
#: What `exchange` has to come to, whoever takes part.
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
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that has the RayMQ of before."""
    (wheel,) = (ROOT / "tests" / "fixtures" / "release").glob("*.whl")
    folder = tmp_path_factory.mktemp("release")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--target", folder, wheel], check=True, timeout=120)
    return folder


def environment(release: Path | None) -> dict[str, str]:
    """Of a process that runs the RayMQ in a folder; None: today's."""
    return os.environ if release is None else {**os.environ, "PYTHONPATH": str(release)}  # type: ignore[return-value]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", str(PROGRAM), *arguments]


@contextlib.contextmanager
def broker(directory: Path, release: Path | None) -> Iterator[str]:
    """A broker and its name server; the address of the latter. It is stopped properly at the end."""
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


def asked(what: str, name_server: str, release: Path | None) -> dict[str, Any]:
    done = subprocess.run(
        command(what, name_server), env=environment(release), stdout=subprocess.PIPE, text=True, check=True, timeout=180
    )
    told: dict[str, Any] = json.loads(done.stdout)
    code = Path(told.pop("code"))
    assert code.is_relative_to(ROOT if release is None else release)  # it was the one that was meant
    return told


@pytest.mark.long
@pytest.mark.parametrize("old", ["client", "broker"])
def test_the_other_side_is_of_before(tmp_path: Path, before: Path, old: str) -> None:
    client, server = (before, None) if old == "client" else (None, before)
    with broker(tmp_path / "broker-a", server) as name_server:
        assert asked("exchange", name_server, client) == EXPECTED
        found = asked("look", name_server, None)
        versions = found.pop("versions")
        assert found == LEFT
        assert versions == ([VERSION] if server is None else [""])


@pytest.mark.long
def test_a_directory_goes_up_and_as_long_as_its_format_allows_down_again(tmp_path: Path, before: Path) -> None:
    directory = tmp_path / "broker-a"
    with broker(directory, before) as name_server:
        assert asked("exchange", name_server, before) == EXPECTED
    assert read_format(directory) == DirectoryFormat()
    for release in (None, before, None):
        with broker(directory, release) as name_server:
            found = asked("look", name_server, release)
            assert {name: found[name] for name in LEFT} == LEFT
        assert read_format(directory) == DirectoryFormat(CURRENT_FORMAT, VERSION)


def test_what_a_broker_of_before_does_not_know_is_told_with_both_versions(tmp_path: Path, before: Path) -> None:
    async def main(name_server: str) -> None:
        pool = ConnectionPool()
        try:
            assert await pool.version(name_server, 10.0) == 1
            with pytest.raises(VersionMismatch, match="versions 1 to 1 of RayMQ's protocol, this side 1 to 3"):
                await pool.request(name_server, Command(900_999, serialization=Serialization.MSGPACK), 10.0)
        finally:
            await pool.close()

    with broker(tmp_path / "broker-a", before) as name_server:
        asyncio.run(main(name_server))


# Replicas


class MixedGroup(ReplicaGroup):
    """Of which some replicas run the RayMQ of before."""

    def __init__(self, folder: Path, before: Path, *old: int) -> None:
        super().__init__(folder)
        self.before = before
        self.old = set(old)

    def start(self, *numbers: int, **changes: Any) -> None:
        for number in numbers or range(1, self.count + 1):
            self.up[number] = subprocess.Popen(
                command("replica", json.dumps(self.spec(number, **changes))),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(self.before if number in self.old else None),
            )
            self.addresses[number] = self.address_of(self.up[number])


@pytest.mark.parametrize("old", [1, 2])
@pytest.mark.long
def test_master_and_replica_of_two_releases(tmp_path: Path, before: Path, old: int) -> None:
    """And the upgrade of the other one, too, by handing over: one is always there."""
    with MixedGroup(tmp_path, before, old) as group:
        group.begin()
        clients = Clients(group)
        with contextlib.closing(clients.mq):
            clients.admin.create_topic("t", queues=2)
            clients.send(*numbered(0, 100))
            group.await_end(2, of=1)
            new = 3 - old
            if old == 1:  # the master of before hands over to the replica of today, and is upgraded
                group.stop(1)
                assert group.elect(2) == new
            else:
                group.stop(2)
            group.old.clear()
            group.start(old)
            group.await_in_sync(1, 2)
            clients.send(*numbered(100, 150))
            assert set(clients.bodies()) == set(numbered(0, 150))


@pytest.mark.long
def test_a_replica_of_before_is_refused_by_a_master_whose_state_it_would_misread(tmp_path: Path, before: Path) -> None:
    with MixedGroup(tmp_path, before, 2) as group:
        group.begin()
        group.kill(2)
        poll_until(lambda: group.state.in_sync == {1}, 60)
        group.stop(1)
        # The master's RayMQ becomes one that writes the next format.
        newer = tmp_path / "newer"
        newer.mkdir()
        (newer / "sitecustomize.py").write_text(
            f"from raymq.storage import directory_format\ndirectory_format.CURRENT_FORMAT = {CURRENT_FORMAT + 1}\n"
        )
        group.before = newer
        group.old = {1}
        group.start(1)
        group.elect(1)
        group.await_serving(1)
        assert read_format(group.directory(1)).number == CURRENT_FORMAT + 1
        for release in (before, None):
            group.before, group.old = release or before, {2} if release else set()
            group.start(2)
            group._await(2, lambda status: "upgrade the RayMQ of the replica" in status.trouble, 60, "is refused")
            assert "supports state formats up to 1" in group.status(2).trouble
            assert group.state.in_sync == {1}
            group.stop(2)


def test_a_directory_of_a_newer_release_does_not_start(tmp_path: Path) -> None:
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


@pytest.mark.long
def test_a_cluster_is_upgraded_while_clients_go_on(tmp_path: Path, before: Path) -> None:
    """On a real Ray: new processes find another folder of code, and the brokers are restarted one by one.

    Those that run go on with theirs: they load parts of it late, which must not be of another release.
    """
    site = tmp_path / "site"  # as the environment's site-packages
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(site)!r})\n")
    (site / "raymq.pth").write_text(f"{before}\n")
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
            assert [each.version for each in admin.cluster_info().brokers] == ["", ""]
            sending = threads.submit(send, mq)
            try:
                (site / "raymq.pth").write_text(f"{ROOT / '.links'}\n")
                raymq = [sys.executable, "-P", "-c", "from raymq.cluster.command import main; main()"]
                where = ["--namespace", "upgrade", "--address", ray_address]
                subprocess.run(
                    [*raymq, *where, "broker", "restart", "--rolling"], env=environment(site), check=True, timeout=150
                )
                told = admin.cluster_info().brokers
                assert [(each.state, each.version) for each in told] == [("running", VERSION)] * 2
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
