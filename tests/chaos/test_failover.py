"""Inject random faults into a cluster's hosts under load, and compare the clients' history with the stored messages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.failover.checks import CHECKS
from tests.chaos.failover.isolation import isolated, reason_not_to
from tests.etcd_servers import REASON

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(reason_not_to() is not None, reason=f"{reason_not_to()}"),
]

SEED = int(os.environ.get("RAYMQ_CHAOS_SEED", str(int(time.time()))))


def run_chaos(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run chaos and return its verdict."""
    options = ["--folder", str(folder), "--seed", str(SEED), *arguments]
    ended = subprocess.run([sys.executable, "-m", "tests.chaos.failover.run", *options], check=False, timeout=280)
    verdict = folder / "verdict.json"
    assert verdict.exists(), f"it ended with {ended.returncode}"
    found: dict[str, Any] = json.loads(verdict.read_text("utf-8"))
    return found


@pytest.mark.long
def test_faults_of_single_copies_lose_no_acknowledged_message(tmp_path: Path) -> None:
    verdict = run_chaos(tmp_path / "run", "--replicas", "1", "--seconds", "20", "--faults", "2")
    assert verdict["good"], verdict["violations"]
    assert verdict["counts"]["acknowledged"] > 100
    assert verdict["counts"]["faults"] >= 1


@pytest.mark.long
def test_faults_of_replicas_lose_no_acknowledged_message(tmp_path: Path) -> None:
    """Check with sync replication, also for the loss of a host with its disk."""
    verdict = run_chaos(tmp_path / "run", "--seconds", "30", "--faults", "4")
    assert verdict["good"], verdict["violations"] or verdict["stuck"]
    assert verdict["counts"]["acknowledged"] > 100
    assert verdict["counts"]["faults"] >= 1


@pytest.mark.long
@pytest.mark.skipif(shutil.which("etcd") is None, reason=REASON)
def test_faults_with_etcd_register_lose_no_acknowledged_message(tmp_path: Path) -> None:
    verdict = run_chaos(tmp_path / "run", "--register", "etcd", "--seconds", "40", "--faults", "5")
    assert verdict["good"], verdict["violations"] or verdict["stuck"]
    assert verdict["counts"]["acknowledged"] > 100
    assert verdict["counts"]["faults"] >= 1


@pytest.mark.long
def test_checks_detect_broker_that_loses_writes(tmp_path: Path) -> None:
    """The broker loses acknowledged messages, and reuses their positions."""
    # Twice: messages continue after the first time, at positions that are reused.
    options = ["--replicas", "1", "--faults", "2", "--pairs", "0", "--drain", "5", "--only", "a broker that forgets"]
    found = run_chaos(tmp_path / "run", *options)["violations"]
    assert found.keys() <= CHECKS.keys()
    assert {"acknowledged and lost", "a place used twice", "seen by a consumer and gone"} <= found.keys()


#: Two hosts that send each other UDP packets, which need no answer, and print what arrived.
_TALK = """
import socket, subprocess, sys
from tests.chaos.failover.network import Network
LISTEN = "import socket; s = socket.socket(2, 2); s.bind(('', 99)); s.settimeout(5); print('on', flush=True); " \
    "print([s.recv(9).decode() for _ in range(int(__import__('sys').argv[1]))], flush=True)"
TELL = "import socket, sys; socket.socket(2, 2).sendto(sys.argv[2].encode(), (sys.argv[1], 99))"
with Network(["h1", "h2"]) as network:
    def listens(host, count):
        program = [*network.inside(host), sys.executable, "-c", LISTEN, str(count)]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "on\\n"
        return process
    def tells(sender, receiver, what):
        program = [*network.inside(sender), sys.executable, "-c", TELL, network.address(receiver), what]
        subprocess.run(program, check=True)
    one, two = listens("h1", 3), listens("h2", 2)
    tells("h1", "h2", "a"); tells("h2", "h1", "b")
    network.cut("h1", "h2")
    tells("h1", "h2", "lost"); tells("h2", "h1", "c")
    network.mend("h1", "h2")
    tells("h1", "h2", "d"); tells("h2", "h1", "e")
    assert eval(one.communicate(timeout=20)[0]) == ["b", "c", "e"]
    assert eval(two.communicate(timeout=20)[0]) == ["a", "d"]
print("as it should be")
"""


def test_network_cut_drops_packets_in_one_direction() -> None:
    ended = subprocess.run(
        isolated([sys.executable, "-c", _TALK]), capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stdout == "as it should be\n", ended.stderr
