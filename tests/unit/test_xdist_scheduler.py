"""Test how tests are distributed to processes; pytest 9.2 silently ignores groups of pytest-xdist."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.polling import poll_until
from tests.xdist_scheduler import _LONGEST, RAYS, RayAwareScheduling, ray_marks, run_first_alone, unit_order, work_unit

#: Patterns of test files that start a Ray, and of those that start Spark.
STARTS_RAY = re.compile(
    r"\bown_ray\(|\bown_cluster\(|cluster start|\"cluster\", \"start\"|(?<!await )cluster\.start\(|release_peer"
    r"|\boutput_of\("
)
STARTS_SPARK = re.compile(r"^\s*from raymq.spark_bridge import SparkBridge$|\"demo\", \*arguments", re.MULTILINE)
MARKS = {
    "spark": "pytestmark = pytest.mark.spark\n",
    "ray": "pytestmark = [pytest.mark.chaos, pytest.mark.ray]\n",
    "": "",
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Return a tree of test files, each named after what it uses."""
    for name in (
        "z/test_spark",
        "a/test_spark",
        "a/test_ray",
        "b/test_ray",
        "c/test_ray",
        "unit/test_plain",
        "d/test_plain",
    ):
        path = tmp_path / "tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = MARKS.get(name.rpartition("_")[2], "")
        body = "@pytest.mark.parametrize('number', range(8))\ndef test_it(number): pass\n"
        path.write_text(f"import pytest\n{mark}{body}", "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/unit/storage/test_store.py::test_x", "tests/unit/storage/test_store.py"),
        ("tests/integration/test_admin.py::TestTopics::test_x[a@b/c]", "tests/integration/test_admin.py"),
        ("tests/integration/test_elastic.py::test_x", "tests/integration/test_elastic.py"),
        ("tests/integration/test_spark_sink.py::test_x", "spark"),
        ("tests/integration/test_demo.py::test_x", "spark"),
    ],
)
def test_work_unit_is_a_file_or_all_spark_files(nodeid: str, unit: str) -> None:
    assert work_unit(nodeid) == unit


def test_marks_are_read_from_the_source_file(suite: Path) -> None:
    assert ray_marks("tests/a/test_ray.py::test_it[1]", suite) == {"ray"}
    assert ray_marks("tests/a/test_spark.py::test_it[1]", suite) == {"spark"}
    assert ray_marks("tests/d/test_plain.py::test_it[1]", suite) == frozenset()


def test_files_that_start_ray_or_spark_have_the_mark(repository: Path) -> None:
    files = [path for path in (repository / "tests").glob("*/**/test_*.py") if path.parent.name != "spark4"]
    found = defaultdict(set)
    for path in files:
        text = path.read_text("utf-8")
        if "unit" not in path.relative_to(repository).parts:
            found["ray"] |= {path} if STARTS_RAY.search(text) else set()
            found["spark"] |= {path} if STARTS_SPARK.search(text) else set()
    assert len(found["ray"]) >= 20
    assert len(found["spark"]) >= 6
    for mark, paths in found.items():
        unmarked = [str(path) for path in sorted(paths) if not ray_marks(str(path), Path("/")) & {mark, "spark"}]
        assert unmarked == [], f"add pytest.mark.{mark} to pytestmark"


def test_spark_files_run_first_and_unit_tests_last(suite: Path) -> None:
    names = ["unit/test_plain", "d/test_plain", "b/test_ray", "z/test_spark"]
    begun = sorted(names, key=lambda name: unit_order(f"tests/{name}.py::test_it", suite))
    assert begun == list(reversed(names))


def test_long_files_exist_and_run_before_others(repository: Path) -> None:
    assert [name for name in _LONGEST if not (repository / name).is_file()] == []
    turns = [unit_order(f"{name}::test_it") for name in ("tests/integration/test_demo.py", *_LONGEST)]
    others = [
        unit_order(f"{name}::test_it") for name in ("tests/integration/test_admin.py", "tests/unit/test_names.py")
    ]
    assert [*turns, *others] == sorted({*turns, *others})


class Node:
    """A process of pytest-xdist, as its scheduler sees it."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.got: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.got += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduler(suite: Path, names: list[str], processes: int = 3) -> tuple[RayAwareScheduling, list[Node], list[str]]:
    """Return a scheduler with its first units assigned, its nodes, and all test names."""
    option = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(rootpath=suite, option=option, getvalue=lambda name: [f"{processes}*popen"])
    shared = RayAwareScheduling(config)
    tests = [f"tests/{name}.py::test_it[{number}]" for name in names for number in range(8)]
    nodes = [Node(f"gw{number}") for number in range(processes)]
    for node in nodes:
        shared.add_node(node)
        shared.add_node_collection(node, tests)
    shared.schedule()
    return shared, nodes, tests


def test_number_of_processes_with_ray_is_limited(suite: Path) -> None:
    names = ["z/test_spark", "a/test_ray", "b/test_ray", "c/test_ray", "d/test_plain"]
    shared, nodes, tests = scheduler(suite, names)
    done: set[int] = set()
    begun = [{tests[index].partition("::")[0] for index in node.got} for node in nodes]
    assert begun == [{f"tests/{name}.py"} for name in ("z/test_spark", "a/test_ray", "d/test_plain")]
    while waiting := [(node, index) for node in nodes for index in node.got if index not in done]:
        running = [{tests[index] for index in node.got if index not in done} for node in nodes]
        rays = sum(any(ray_marks(test, suite) for test in each) for each in running)
        assert rays <= RAYS
        node, index = waiting[0]
        done.add(index)
        shared.mark_test_complete(node, index)
    assert len(done) == len(tests)
    assert all(node.shutting_down for node in nodes)


def test_all_tests_of_a_unit_run_in_one_process(suite: Path, repository: Path) -> None:
    hook = f"import sys\nsys.path.insert(0, {str(repository)!r})\n"
    hook += "def pytest_xdist_make_scheduler(config, log):\n"
    hook += "    from tests.xdist_scheduler import RayAwareScheduling\n    return RayAwareScheduling(config, log)\n"
    (suite / "conftest.py").write_text(hook, "utf-8")
    (suite / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib\nmarkers = ray\n spark\n chaos\n", "utf-8"
    )
    command = [sys.executable, "-m", "pytest", "-n", "2", "--no-loadscope-reorder", "-v", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    took = defaultdict(set)
    for worker, nodeid in re.findall(r"\[(gw\d)\].* PASSED (\S+)", ended.stdout):
        took[work_unit(nodeid, suite)].add(worker)
    assert len(took) == 6
    assert all(len(workers) == 1 for workers in took.values()), took


def test_first_process_collects_alone_then_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock
    waiting: list[None] = []

    def record_and_lock(file: Any, operation: int) -> None:
        if operation == fcntl.LOCK_SH:
            waiting.append(None)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", record_and_lock)
    lock = tmp_path / "build" / "lock"
    together = threading.Barrier(3, timeout=30)
    ended: list[int] = []

    def collect(number: int) -> None:
        with run_first_alone(lock):
            together.wait()  # all three run at the same time
            ended.append(number)

    others = [threading.Thread(target=collect, args=(number,)) for number in range(3)]
    with run_first_alone(lock):
        for other in others:
            other.start()
        poll_until(lambda: len(waiting) == 3, what="all others wait")
        assert ended == []
    for other in others:
        other.join(30)
    assert sorted(ended) == [0, 1, 2]
