"""Test that a sample of each sweep runs, and all cases on request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sweep_sampling import filter_batch_code

SUITE = """
import pytest
@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("n", range(10))
def test_swept(n): pass
@pytest.mark.parametrize("n", range(3))
def test_not_swept(n): pass
"""
CONFTEST = """
from tests import sweep_sampling
def pytest_configure(config): config.addinivalue_line("markers", "sweep: ")
def pytest_collection_modifyitems(items): items[:], left = sweep_sampling.sample_cases(items)
"""


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([], ["swept[0]", "swept[4]", "swept[8]", "swept[9]", "not_swept[0]", "not_swept[1]", "not_swept[2]"]),
        (["test_made.py::test_swept[5]"], ["swept[5]"]),
    ],
    ids=["all", "one by name"],
)
def test_sweep_runs_the_first_last_and_every_nth_case(
    tmp_path: Path, repository: Path, asked: list[str], expected: list[str]
) -> None:
    (tmp_path / "test_made.py").write_text(SUITE, "utf-8")
    (tmp_path / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(repository)!r})\n{CONFTEST}", "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    ended = subprocess.run([*command, *asked], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert [line.partition("::test_")[2] for line in ended.stdout.splitlines() if "::" in line] == expected


def test_whole_sweeps_option_exists(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getoption("--whole-sweeps") in (True, False)


@pytest.mark.parametrize(
    ("numpy", "is_compiled", "expected"),
    [(False, True, [None, "compiled"]), (False, False, [None, "numpy", "compiled"]), (True, True, ["numpy"])],
)
def test_compiled_cases_do_not_run_in_numpy_too(numpy: bool, is_compiled: bool, expected: list[str | None]) -> None:
    items: list[Any] = [
        SimpleNamespace(),
        *(SimpleNamespace(callspec=SimpleNamespace(params={"batch_code": code})) for code in ("numpy", "compiled")),
    ]
    kept, left = filter_batch_code(items, numpy=numpy, is_compiled=is_compiled)
    assert [item.callspec.params["batch_code"] if hasattr(item, "callspec") else None for item in kept] == expected
    assert sorted(map(id, kept + left)) == sorted(map(id, items))


def test_case_selected_by_name_runs_in_numpy() -> None:
    items: list[Any] = [SimpleNamespace(callspec=SimpleNamespace(params={"batch_code": "numpy"}))]
    assert filter_batch_code(items, numpy=False, is_compiled=True) == (items, [])
