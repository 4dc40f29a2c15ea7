"""Test the settings: every key is documented, shipped files load, and unknown keys are refused."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from raymq.actors.protocol import Tls
from raymq.client import InvalidInput
from raymq.cluster.cli import main_group
from raymq.cluster.cluster_config import SETTINGS, ClusterConfig
from raymq.console import console_extra

SHIPPED = ("embedded.yaml", "local.yaml", "durable.yaml")


def test_embedded_yaml_lists_every_setting_with_its_default(repository: Path) -> None:
    text = (repository / "configs" / "embedded.yaml").read_text()
    assert yaml.safe_load(text) == ClusterConfig.defaults()
    comments = text.replace("\n# ", " ")
    assert [name for name, each in SETTINGS.items() if each.description.replace("`", "") not in comments] == []


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_load(repository: Path, name: str) -> None:
    loaded = ClusterConfig.load(repository / "configs" / name)
    assert loaded == ClusterConfig.load(yaml.safe_load((repository / "configs" / name).read_text()))


def test_shipped_files_change_these_settings(repository: Path) -> None:
    configs = repository / "configs"
    assert ClusterConfig.load(configs / "embedded.yaml") == ClusterConfig()
    assert ClusterConfig.load(configs / "local.yaml") == ClusterConfig(port=9876, auto_create_topics=True)
    assert ClusterConfig.load(configs / "durable.yaml") == ClusterConfig(store={"flush": "sync"})


def test_settings_survive_json_for_comparison() -> None:
    config = ClusterConfig.load({"flush": "sync", "index_slots": 10})
    assert json.loads(json.dumps(config.as_dict())) == config.as_dict()
    assert config.store == {"flush": "sync", "index_slots": 10}


def test_replication_settings_are_loaded() -> None:
    config = ClusterConfig.load({"replication": "sync", "min_in_sync": 2})
    assert (config.replication, config.min_in_sync, config.store) == ("sync", 2, {})
    assert json.loads(json.dumps(config.as_dict())) == config.as_dict()


def test_tls_is_on_with_a_certificate() -> None:
    files = {"tls_ca_file": "ca.pem", "tls_cert_file": "own.pem", "tls_key_file": "own.key"}
    loaded = ClusterConfig.load({**files, "tls_check_host": False})
    assert loaded.tls == Tls("ca.pem", "own.pem", "own.key", client_auth=False, check_host=False)
    assert loaded.store == {}
    assert json.loads(json.dumps(loaded.as_dict())) == loaded.as_dict()


@pytest.mark.parametrize(
    "config",
    [
        {"flush": "sometimes"},
        {"unknown": 1},
        {"replication": "perhaps"},
        {"replication": True},
        {"min_in_sync": 0},
        {"min_in_sync": 17},
        {"min_in_sync": True},
        {"min_in_sync": "2"},
        {"commitlog_file_bytes": "1 GiB"},
        {"commitlog_file_bytes": 1},
        {"index_slots": 0},
        {"delay_levels": "soon"},
        {"delay_levels": 5},
        {"delete_at_hour": 24},
        {"delete_at_hour": True},
        {"delete_at_hour": "\u0664"},
        {"retention_hours": float("inf")},
        {"retention_hours": float("nan")},
        {"retention_hours": "72"},
        {"commitlog_file_bytes": 2**62},
        {"flush_interval_ms": 1},
        {"disk_refuse_ratio": True},
        {1: 2, "x": 3},
        {"disk_refuse_ratio": 1.5},
        {"auto_create_topics": "yes"},
        {"append_wait_ms": 0},
        {"port": -1},
        {"port": True},
        {"store_host": "127.0.0.1:1"},
        {"tls_ca_file": "ca.pem"},
        {"tls_cert_file": "own.pem"},
        {"tls_cert_file": "own.pem", "tls_key_file": 7},
        {"tls_cert_file": "own.pem", "tls_key_file": "own.key", "tls_client_auth": True},
        {"tls_cert_file": "own.pem", "tls_key_file": "own.key", "tls_check_host": "no"},
    ],
)
def test_invalid_settings_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ClusterConfig.load(config)


@pytest.mark.parametrize(
    "config",
    [
        *({"console": "yes"}, {"console_port": 70_000}, {"console_host": 1}),
        *({"console_allowed_hosts": "mq"}, {"console_allowed_hosts": [1]}, {"console_allowed_hosts": ["mq:443"]}),
    ],
)
def test_invalid_settings_of_the_console_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ClusterConfig.load(config)


def test_console_without_its_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ClusterConfig.load({"console": True, "console_port": 0}).console
    monkeypatch.setattr(console_extra, "find_spec", lambda name: None if name == "jinja2" else name)
    with pytest.raises(InvalidInput, match="Jinja2") as caught:
        ClusterConfig.load({"console": True})
    assert caught.value.field == "console"
    assert "raymq[console]" in (caught.value.remedy or "")
    assert not ClusterConfig.load({"console": False}).console


def test_unquoted_hour_is_accepted() -> None:
    assert ClusterConfig.load({"delete_at_hour": 5}).store == {"delete_at_hour": "05"}
    assert ClusterConfig.load({"delete_at_hour": 4}) == ClusterConfig()


@pytest.mark.parametrize("name", ["access_control", "tls_mode"])
def test_setting_of_a_missing_feature_is_refused_with_a_hint(name: str) -> None:
    with pytest.raises(InvalidInput, match="not in this version") as caught:
        ClusterConfig.load({name: 1})
    assert caught.value.field == name


@pytest.mark.parametrize(
    "content",
    [
        *("- a\n- b\n", "flush: [", "text", "\xff", "port: 1\nport: 2\n", "port: &a [*a]\n", "[" * 2_000),
        *("port: !!timestamp 99999-99-99\n", "port: !!int x\n", "port: !!bool x\n", "port: !!int ''\n"),
        "port: 0001-01-01T00:00:00+23:00\n",
    ],
)
def test_file_without_a_mapping_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InvalidInput):
        ClusterConfig.load(path)
    with pytest.raises(InvalidInput):
        ClusterConfig.load(tmp_path / "missing.yaml")


def test_every_setting_has_a_description_and_a_valid_default() -> None:
    for setting in SETTINGS.values():
        assert setting.description.endswith("."), setting.name
        assert setting.allowed, setting.name
        setting.check(setting.default)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"flush": "sometimes"}, 'flush: "async" or "sync"; got \'sometimes\''),
        ({"port": 70_000}, "port: a whole number from 0 to 65535; got 70000"),
        ({"disk_refuse_ratio": 0}, "disk_refuse_ratio: a number above 0, at most 1; got 0"),
        ({"auto_create_topics": "yes"}, "auto_create_topics: true or false; got 'yes'"),
        ({"delete_at_hour": "24"}, 'delete_at_hour: "00" to "23" or "*"; got \'24\''),
    ],
)
def test_error_names_setting_range_and_value(config: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ClusterConfig.load(config)
    assert str(caught.value) == said


def test_misspelt_key_gets_a_suggestion() -> None:
    with pytest.raises(InvalidInput) as caught:
        ClusterConfig.load({"retention_hour": 1})
    assert caught.value.remedy == "did you mean retention_hours?"


def test_all_problems_of_a_file_are_reported_together() -> None:
    wrong = {"flush": "never", "port": -1, "colour": "red", "index_slots": 7, "max_message_bytes": 0}
    assert [error.field for error in ClusterConfig.problems(wrong)] == ["flush", "port", "config", "max_message_bytes"]
    assert ClusterConfig.problems({"tls_cert_file": "own.pem"})[0].field == "tls_cert_file"
    assert ClusterConfig.problems({"flush": "sync"}) == []


def run_config_command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main_group, ["config", *arguments])
    return result.exit_code, result.output


def test_config_show_lists_every_setting(repository: Path) -> None:
    code, output = run_config_command("show", "--json")
    assert code == 0
    assert {each["setting"]: each["value"] for each in json.loads(output)} == ClusterConfig.defaults()
    code, output = run_config_command("show", str(repository / "configs" / "durable.yaml"))
    assert code == 0
    assert "flush: sync   # default: async" in output
    assert all(f"\n{name}: " in f"\n{output}" for name in SETTINGS)


def test_config_check_reports_problems(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("flush: sync\nretention_hours: 24\n")
    assert run_config_command("check", str(path)) == (
        0,
        f"{path}: fine, 2 of {len(SETTINGS)} settings differ from their defaults\n",
    )
    path.write_text("flush: never\nport: -1\n")
    code, output = run_config_command("check", str(path), "--json")
    assert code == 1
    assert [each["setting"] for each in json.loads(output)["problems"]] == ["flush", "port"]
    code, output = run_config_command("check", str(path))
    assert code == 1
    assert "a whole number from 0 to 65535" in output


@pytest.mark.parametrize("value", [np.float64(48.0), 48, 48.0])
def test_number_settings_accept_numpy_and_whole_numbers(value: float) -> None:
    assert ClusterConfig.load({"retention_hours": value}).store == {"retention_hours": 48.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention_hours", Decimal(48)),
        ("etcd_endpoints", {"http://a", "http://b"}),
        ("flush", "\udcff"),
        ("max_auto_topics", "\ud800"),
    ],
)
def test_value_of_an_unusual_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        ClusterConfig.load({name: value})
    assert caught.value.field == name


@pytest.mark.parametrize("name", ["RETENTION_HOURS", "retention_hour"])
def test_unknown_key_names_a_similar_one(name: str) -> None:
    with pytest.raises(InvalidInput, match="did you mean retention_hours") as caught:
        ClusterConfig.load({name: 1})
    assert caught.value.actual == name


@pytest.mark.parametrize(
    "text",
    [
        "retention_hours: 2026-01-01",
        "retention_hours: .nan",
        "flush: !!binary aGVsbG8=",
        "etcd_endpoints: &a [*a]",
        "etcd_endpoints: !!set {a, b}",
        "RETENTION_HOURS: 4",
    ],
)
def test_config_check_reports_odd_values_as_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    code, output = run_config_command("check", "--json", str(path))
    assert code == 1, output
    [problem] = json.loads(output)["problems"]
    assert problem["setting"] == text.partition(":")[0]
    assert run_config_command("check", str(path))[0] == 1


def test_config_show_lists_only_changed_settings(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("retention_hours: 48\nflush: async\n")
    rows = json.loads(run_config_command("show", "--changed", "--json", str(path))[1])
    assert [row["setting"] for row in rows] == ["retention_hours"]
