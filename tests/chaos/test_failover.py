"""Hosts of a cluster are broken at random under load, and what clients were told is compared with what is there."""

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


def chaos(folder: Path, *arguments: str) -> dict[str, Any]:
    """A run's verdict."""
    told = ["--folder", str(folder), "--seed", str(SEED), *arguments]
    ended = subprocess.run([sys.executable, "-m", "tests.chaos.failover.run", *told], check=False, timeout=280)
    verdict = folder / "verdict.json"
    assert verdict.exists(), f"it ended with {ended.returncode}"
    found: dict[str, Any] = json.loads(verdict.read_text("utf-8"))
    return found


@pytest.mark.long
def test_brokers_of_one_copy_are_broken_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    verdict = chaos(tmp_path / "run", "--replicas", "1", "--seconds", "20", "--faults", "2")
    assert verdict["good"], verdict["violations"]
    assert verdict["counts"]["acknowledged"] > 100
    assert verdict["counts"]["faults"] >= 1


@pytest.mark.long
def test_replicas_are_broken_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """With sync replication not even where a host is gone with its disk."""
    verdict = chaos(tmp_path / "run", "--seconds", "30", "--faults", "4")
    assert verdict["good"], verdict["violations"] or verdict["stuck"]
    assert verdict["counts"]["acknowledged"] > 100
    assert verdict["counts"]["faults"] >= 1


@pytest.mark.long
@pytest.mark.skipif(shutil.which("etcd") is None, reason=REASON)
def test_replicas_with_their_register_on_etcd_are_broken_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    verdict = chaos(tmp_path / "run", "--register", "etcd", "--seconds", "40", "--faults", "5")
    assert verdict["good"], verdict["violations"] or verdict["stuck"]
    assert verdict["counts"]["acknowledged"] > 100
    assert verdict["counts"]["faults"] >= 1


@pytest.mark.long
def test_a_broker_that_forgets_is_found_out(tmp_path: Path) -> None:
    """It loses what it has acknowledged, and gives its places to other messages."""
    # Twice: behind the first time messages go on for a while, to places that are used again.
    told = ["--replicas", "1", "--faults", "2", "--pairs", "0", "--drain", "5", "--only", "a broker that forgets"]
    found = chaos(tmp_path / "run", *told)["violations"]
    assert found.keys() <= CHECKS.keys()
    assert {"acknowledged and lost", "a place used twice", "seen by a consumer and gone"} <= found.keys()


#: Two hosts; each tells the other something by UDP, which needs no answer, and is told what has arrived.
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


def test_a_cut_between_hosts_is_silent_and_of_one_way() -> None:
    ended = subprocess.run(
        isolated([sys.executable, "-c", _TALK]), capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stdout == "as it should be\n", ended.stderr
