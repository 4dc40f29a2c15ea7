"""How the tests are shared out to processes. (Groups of pytest-xdist itself are silently ignored by pytest 9.2.)"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.shared_out import turn, unit_of


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/integration/test_admin.py::TestTopics::test_x[a@b/c]", "clusters, first half"),
        ("tests/integration/test_timers.py::test_x", "clusters, second half"),
        ("tests/chaos/test_user_soak.py::test_x", "chaos"),
        ("tests/integration/test_spark_sink.py::test_x", "spark"),
        ("tests/integration/test_demo.py::test_x", "spark"),
        ("tests/unit/storage/test_store.py::test_x", "tests/unit/storage/test_store.py"),
        ("tests/unit/test_names.py::test_integration", "tests/unit/test_names.py"),
    ],
)
def test_a_test_belongs_to_its_file_or_to_what_starts_clusters(nodeid: str, unit: str) -> None:
    assert unit_of(nodeid) == unit


def test_what_takes_long_begins_first() -> None:
    names = [
        "unit/test_a",
        "crash/test_b",
        "chaos/test_c",
        "integration/test_d",
        "integration/test_spark",
        "integration/test_z",
    ]
    begun = sorted(names, key=lambda name: turn(f"tests/{name}.py::test_x"))
    assert [name.partition("/")[2] for name in begun] == [
        "test_spark",
        "test_d",
        "test_z",
        "test_c",
        "test_b",
        "test_a",
    ]


def test_one_process_runs_all_tests_of_a_unit(tmp_path: Path, repository: Path) -> None:
    for name in ("integration/test_a.py", "integration/test_b.py", "integration/test_spark_c.py", "unit/test_d.py"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "import pytest\n@pytest.mark.parametrize('number', range(8))\ndef test_it(number): pass\n", "utf-8"
        )
    hook = f"import sys\nsys.path.insert(0, {str(repository)!r})\n"
    hook += "def pytest_xdist_make_scheduler(config, log):\n"
    hook += "    from tests.shared_out import SharedOut\n    return SharedOut(config, log)\n"
    (tmp_path / "conftest.py").write_text(hook, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--no-loadscope-reorder", "-v", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    took = defaultdict(set)
    for worker, nodeid in re.findall(r"\[(gw\d)\].* PASSED (\S+)", ended.stdout):
        took[unit_of(nodeid)].add(worker)
    assert set(took) == {"clusters, first half", "spark", "tests/unit/test_d.py"}
    assert all(len(workers) == 1 for workers in took.values()), took
