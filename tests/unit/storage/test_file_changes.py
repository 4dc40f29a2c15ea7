"""Test that files are changed only through `storage/files`, where tests inject faults."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Calls of the os module that change files; reads, flags and types may be used everywhere.
OS_CALLS = {
    *("open", "write", "pwrite", "writev", "pwritev", "sendfile", "copy_file_range", "ftruncate", "truncate"),
    *("rename", "renames", "replace", "unlink", "remove", "link", "symlink", "chmod", "utime"),
    *("mkdir", "makedirs", "rmdir", "removedirs", "fsync", "fdatasync", "sync", "posix_fallocate"),
}
#: Methods of paths. `rename` and `replace` are also methods of text and of calls behind the seam.
PATH_CALLS = {"write_bytes", "write_text", "unlink", "mkdir", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod"}
SHUTIL_CALLS = {"rmtree", "copy", "copy2", "copyfile", "copyfileobj", "copytree", "move"}
#: Objects with methods of these names that go through the seam.
SEAMS = {"self.real", "fileutil"}


def file_changes(source: str) -> Iterator[str]:
    """Yield the calls in a source that change files past the seam."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        of, _, name = called.rpartition(".")
        if of == "os":
            wrong = name in OS_CALLS
        elif of == "shutil":
            wrong = name in SHUTIL_CALLS
        elif name == "open" and of not in SEAMS:
            modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
            wrong = any(isinstance(mode, str) and set(mode) & set("wax+") and len(mode) < 4 for mode in modes)
        else:
            wrong = bool(of) and of not in SEAMS and name in PATH_CALLS
        if wrong:
            yield f"{node.lineno}: {called}"


def test_only_storage_files_package_changes_files(repository: Path) -> None:
    folder = repository / "storage"
    found = {
        str(path.relative_to(folder)): wrong
        for path in sorted(folder.rglob("*.py"))
        if "files" not in path.relative_to(folder).parts
        and (wrong := list(file_changes(path.read_text(encoding="utf-8"))))
    }
    assert found == {}
    seam = (folder / "files" / "file_calls.py").read_text(encoding="utf-8")
    assert len(list(file_changes(seam))) > 8, "the check finds the calls where they are"


@pytest.mark.parametrize(
    "source",
    ["os.replace(a, b)", "path.unlink()", "open(path, 'wb')", "path.open('r+b')", "shutil.rmtree(path)"],
)
def test_check_finds_a_file_change(source: str) -> None:
    assert list(file_changes(source))


@pytest.mark.parametrize(
    "source",
    [
        "path.open('rb')",
        "open(path)",
        "text.replace('a', 'b')",
        "self.real.unlink(path)",
        "fileutil.replace(path, b'')",
    ],
)
def test_check_allows_reads_and_calls_through_the_seam(source: str) -> None:
    assert not list(file_changes(source))
