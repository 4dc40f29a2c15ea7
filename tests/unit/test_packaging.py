"""Test that package list, lock files, Makefile and documents are complete and agree."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from raymq.storage.records import native_kernels
from raymq.storage.version import VERSION

#: Folders at the root with Python or data that are not packages.
NO_PACKAGES = {"tests", "docs", "examples", "build", "dist", "data", "native"}
#: Distributions whose import name differs from their own name.
DISTRIBUTIONS = {"yaml": "pyyaml", "opentelemetry": "opentelemetry-api"}
#: Dependencies that are used if they are installed.
OPTIONAL = {
    *("urllib3", "uvloop", "raymq-native", "prometheus-client", "opentelemetry-api"),
    *("aiohttp", "jinja2", "markupsafe"),
}
OPTIONAL_EXTRAS = {"etcd", "uvloop", "native", "prometheus", "console", "otel"}
PYTHONS = ["3.11", "3.12", "3.13"]
#: Each lock file, with the extra of its Spark version.
LOCKS = {"requirements.lock": "spark", "requirements-spark4.lock": "spark4"}


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


def python_folders(root: Path) -> set[str]:
    """Return every folder below the root with Python files to install, such as `actors/wire`."""
    return {
        path.parent.relative_to(root).as_posix()
        for folder in root.iterdir()
        if folder.is_dir()
        and not folder.name.startswith(".")
        and folder.name not in NO_PACKAGES
        and not folder.name.endswith(".egg-info")
        for path in folder.rglob("*.py")
    }


def packaged_folders(project: dict[str, Any]) -> set[str]:
    """Return the folder of every package in pyproject.toml, by its own or its parent's mapping."""
    mapping = project["tool"]["setuptools"]["package-dir"]
    found = set()
    for package in project["tool"]["setuptools"]["packages"]:
        mapped = next(name for name in (package, *_parents(package)) if name in mapping)
        found.add(mapping[mapped] + package[len(mapped) :].replace(".", "/"))
    return found


def _parents(package: str) -> Iterator[str]:
    while "." in package:
        package = package.rpartition(".")[0]
        yield package


def test_every_folder_with_python_files_is_packaged(repository: Path, project: dict[str, Any]) -> None:
    assert python_folders(repository) == packaged_folders(project)


def test_unpackaged_folder_is_detected(tmp_path: Path, project: dict[str, Any]) -> None:
    for folder in [*packaged_folders(project), "actors/wire/new", "tests/unit", ".hidden"]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "module.py").touch()
    assert python_folders(tmp_path) - packaged_folders(project) == {"actors/wire/new"}


def test_every_package_has_a_docstring(repository: Path, project: dict[str, Any]) -> None:
    for folder in packaged_folders(project):
        source = (repository / folder / "__init__.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(source)), folder


def test_makefile_lists_the_packaged_folders(repository: Path, project: dict[str, Any]) -> None:
    (folders,) = re.findall(r"^FOLDERS := (.*)$", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(folders.split()) == set(project["tool"]["setuptools"]["package-dir"].values())


def test_project_version_equals_the_module_version(project: dict[str, Any]) -> None:
    assert project["project"]["version"] == VERSION


def test_entry_points_exist(project: dict[str, Any]) -> None:
    entries = [*project["project"]["scripts"].values(), *project["project"]["entry-points"]["raymq.commands"].values()]
    for entry in entries:
        module, _, function = entry.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


# Dependencies


def requirements(project: dict[str, Any], lock: str) -> list[Requirement]:
    left_out = OPTIONAL_EXTRAS | set(LOCKS.values()) - {LOCKS[lock]}
    extras = [wanted for name, wanted in project["project"]["optional-dependencies"].items() if name not in left_out]
    lists = [project["project"]["dependencies"], project["build-system"]["requires"], *extras]
    return [Requirement(text) for each in lists for text in each]


def locked_requirements(repository: Path, lock: str) -> list[tuple[Requirement, list[str]]]:
    """Return each requirement of a lock file with its hashes."""
    text = (repository / lock).read_text(encoding="utf-8")
    found = []
    for block in re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines():
        if block.strip():
            requirement, *hashes = re.split(r"\s--hash=", block.strip())
            found.append((Requirement(requirement), [each.strip() for each in hashes]))
    return found


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("lock", LOCKS)
def test_lock_file_has_every_dependency(
    repository: Path, project: dict[str, Any], python: str, machine: str, lock: str
) -> None:
    environment = {
        "python_version": python, "python_full_version": f"{python}.1", "platform_machine": machine,
        "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
        "platform_python_implementation": "CPython", "implementation_name": "cpython",
    }  # fmt: skip
    versions: dict[str, str] = {}
    for requirement, _ in locked_requirements(repository, lock):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert name not in versions, f"{name} twice"
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            versions[name] = specifier.version
    for requirement in requirements(project, lock):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert name in versions, f"{name} is missing: make lock"
            assert versions[name] in requirement.specifier, (
                f"{name} {versions[name]} is outside {requirement.specifier}"
            )


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_file_has_hashes_and_no_host(repository: Path, lock: str) -> None:
    for requirement, hashes in locked_requirements(repository, lock):
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), requirement
        assert requirement.url is None
    text = (repository / lock).read_text(encoding="utf-8")
    assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host|file:|@", text)


def test_every_import_is_a_declared_dependency(repository: Path, project: dict[str, Any]) -> None:
    base = {canonicalize_name(Requirement(text).name) for text in project["project"]["dependencies"]}
    spark = {canonicalize_name(Requirement(text).name) for text in project["project"]["optional-dependencies"]["spark"]}
    extras = project["project"]["optional-dependencies"]
    console = {canonicalize_name(Requirement(text).name) for text in extras["console"]}
    for folder in packaged_folders(project):
        knows_spark = folder.startswith(("spark_bridge", "demo"))
        allowed = base | OPTIONAL | (spark | {"py4j"} if knows_spark else set())
        allowed |= console if folder == "console" else set()
        for path in (repository / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                for top in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"raymq"}:
                    assert canonicalize_name(DISTRIBUTIONS.get(top, top)) in allowed, f"{path}:{node.lineno}: {top}"


def test_native_package_is_installed_if_there_is_a_compiler(repository: Path, project: dict[str, Any]) -> None:
    companion = tomllib.loads((repository / "native" / "pyproject.toml").read_text(encoding="utf-8"))
    name, version = companion["project"]["name"], companion["project"]["version"]
    assert project["project"]["optional-dependencies"]["native"] == [f"{name}=={version}"]
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    assert importlib.metadata.version(name) == version
    assert importlib.import_module("raymq_native").INTERFACE == native_kernels.INTERFACE


# The wheel


def test_wheel_has_all_modules_and_data_and_can_be_imported(
    repository: Path, project: dict[str, Any], tmp_path: Path
) -> None:
    tree = tmp_path / "a tree"
    tree.mkdir()
    folders = set(project["tool"]["setuptools"]["package-dir"].values())
    for name in folders:
        shutil.copytree(repository / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, tree)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *offline, "--wheel-dir", tmp_path, tree], check=True, timeout=120)
    (wheel,) = tmp_path.glob("raymq-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")]
    wanted = {
        str(PurePosixPath("raymq", path.relative_to(repository).as_posix()))
        for name in folders
        for path in (repository / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == wanted
    assert "License-Expression: Apache-2.0" in metadata

    installed = tmp_path / "installed"
    subprocess.run([*pip, "install", *offline, "--target", installed, wheel], check=True, timeout=120)
    program = (
        "import raymq.storage.errors, raymq.demo.demo_input as demo\n"
        "with demo.bundled_flights() as path: print(raymq.storage.errors.__file__, demo.describe(path).rows, sep='|')"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    file, rows = ran.stdout.strip().split("|")
    assert Path(file).is_relative_to(installed)
    assert rows == "12208"


# make


def make_targets(repository: Path) -> set[str]:
    return set(re.findall(r"^([a-z][a-z0-9-]*):", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_every_make_target_is_phony(repository: Path) -> None:
    (phony,) = re.findall(r"^\.PHONY: (help .*)$", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(phony.split()) == make_targets(repository)


def test_documented_make_commands_exist(repository: Path) -> None:
    documents = [repository / "README.md", repository / "CHANGELOG.md", *sorted((repository / "docs").rglob("*.md"))]
    named = {
        (path.name, target)
        for path in documents
        for target in re.findall(
            r"(?:^[ \t]*(?:\$ )?|`)make ([a-z][a-z0-9-]*)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert {target for _, target in named} >= {"env", "demo", "test"}
    assert {each for each in named if each[1] not in make_targets(repository)} == set()
