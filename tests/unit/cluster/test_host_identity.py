"""Test the identity of a machine, which is stored on its brokers' disk and survives renames."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from raymq.client import InvalidInput, StoreCorrupt
from raymq.cluster.cli import main_group
from raymq.cluster.host_identity import FILE, check_mounted, host_identity


def test_host_identity_survives_a_rename_of_the_machine(tmp_path: Path) -> None:
    first = host_identity(tmp_path / "root", "ip-10-0-0-5.eu-central-1.compute.internal")
    assert re.fullmatch("ip-10-0-0-5-[0-9a-f]{6}", first)
    assert host_identity(tmp_path / "root", "ip-10-0-7-7") == first


def test_machines_of_one_name_get_different_identities(tmp_path: Path) -> None:
    assert host_identity(tmp_path / "a", "node") != host_identity(tmp_path / "b", "node")


def test_root_with_brokers_keeps_the_host_name(tmp_path: Path) -> None:
    (tmp_path / "broker-a").mkdir()
    assert host_identity(tmp_path, "node-1.lan") == "node-1.lan"


@pytest.mark.parametrize("host_name", ["", "-", "ä ö", "x" * 300, "a/b"])
def test_any_host_name_becomes_a_valid_resource_name(tmp_path: Path, host_name: str) -> None:
    assert re.fullmatch("[A-Za-z0-9][A-Za-z0-9-]*", host_identity(tmp_path, host_name))


@pytest.mark.parametrize("text", ['{"host": "a b"}', '{"host": 1}', '{"host": "../x"}', "{"])
def test_invalid_identity_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StoreCorrupt, match=FILE):
        host_identity(tmp_path, "node")


def test_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").touch()
    with pytest.raises(InvalidInput, match="root"):
        host_identity(tmp_path / "root", "node")


def test_root_on_the_system_disk_counts_as_not_mounted() -> None:
    with pytest.raises(InvalidInput, match="mounted"):
        check_mounted(Path("/usr/nothing/there"))
    check_mounted(Path("/proc/nothing/there"))


def test_host_resources_command_prints_the_ray_resource(tmp_path: Path) -> None:
    command = ["cluster", "host-resources", "--root", str(tmp_path / "root")]
    ended = CliRunner().invoke(main_group, command)
    assert ended.exit_code == 0, ended.output
    ((resource, amount),) = json.loads(ended.output).items()
    assert resource.startswith("broker_")
    assert amount == 1
    assert CliRunner().invoke(main_group, command).output == ended.output
