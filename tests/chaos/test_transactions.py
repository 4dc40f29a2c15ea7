"""SIGKILL producers and masters during transactions: exactly the committed messages are visible, once each."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from raymq import cluster
from raymq.client import Admin, Producer
from tests.chaos.test_kills_under_sends import kill_master, read_all
from tests.chaos.transaction_program import COMMIT, GROUP, ROLLBACK, TOPIC, checker, open_database
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [
    pytest.mark.ray,
    pytest.mark.chaos,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:2 replicas of each broker group share"),
]

CONFIG = {
    "replication": "sync",
    "transaction_check_after": 2.0,
    "transaction_check_every": 1.0,
    "transaction_check_max": 1_000,
}
EVERY_SECONDS = 4.0


def violations(decisions: Mapping[str, str], visible: Mapping[str, int]) -> list[str]:
    """Return what contradicts the promise about transactions, as sentences.

    Args:
        decisions: the decision about each transaction.
        visible: how many copies of each message consumers can read.
    """
    return [
        *(
            f"{each} is committed and not visible"
            for each in decisions
            if decisions[each] == COMMIT and not visible.get(each)
        ),
        *(f"{each} is visible {times} times" for each, times in visible.items() if times > 1),
        *(f"{each} is visible and was not committed" for each in visible if decisions.get(each) != COMMIT),
    ]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ({"1": 1}, []),
        ({}, ["1 is committed and not visible"]),
        ({"1": 2}, ["1 is visible 2 times"]),
        ({"1": 1, "2": 1}, ["2 is visible and was not committed"]),
        ({"1": 1, "3": 1}, ["3 is visible and was not committed"]),
    ],
)
def test_violations_are_found(visible: dict[str, int], found: list[str]) -> None:
    assert violations({"1": COMMIT, "2": ROLLBACK}, visible) == found


@pytest.mark.parametrize("kills", [pytest.param(4, marks=pytest.mark.long), pytest.param(20, marks=pytest.mark.soak)])
def test_kills_leave_exactly_the_committed_messages(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "decisions.db"
    database = open_database(path)
    with own_ray(), cluster.start(1, tmp_path / "data", "transactions", replicas=2, config=CONFIG) as mq:
        admin = Admin(mq)
        admin.create_topic(TOPIC, queues=4)
        program: subprocess.Popen[bytes] | None = None
        try:
            for kill in range(kills + 1):
                if program is None:
                    command = ["-m", "tests.chaos.transaction_program", ";".join(mq.name_servers), str(path)]
                    program = subprocess.Popen([sys.executable, *command, str(kill * 10_000_000)])
                due = time.monotonic() + EVERY_SECONDS
                before = count_decisions(database)
                poll_until(lambda before=before: count_decisions(database) > before + 100, 60, "transactions go on")
                time.sleep(max(0.0, due - time.monotonic()))
                if kill % 2:
                    kill_master(admin)
                else:
                    program.kill()
                    program.wait()
                    program = None
        finally:
            if program is not None:
                program.kill()
                program.wait()
        with Producer(mq, GROUP, transaction_checker=checker(path)):  # type: ignore[arg-type]
            poll_until(lambda: not admin.transactions(), 120, "all transactions are decided")
        visible = {body.decode(): copies for body, copies in read_all(mq).items()}
    decisions = dict(database.execute("SELECT id, decision FROM decisions").fetchall())
    database.close()
    print(f"{kills} kills: {len(decisions)} transactions, {len(visible)} visible")
    assert violations(decisions, visible) == []
    assert len(decisions) > 100 * kills


def count_decisions(database: object) -> int:
    [(count,)] = database.execute("SELECT COUNT(*) FROM decisions").fetchall()  # type: ignore[attr-defined]
    return int(count)
