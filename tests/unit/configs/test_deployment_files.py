"""Test that the deployment files in configs/ are valid for Ray, KubeRay and Kubernetes, and agree."""

from __future__ import annotations

import json
import lzma
import re
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft7Validator
from ray.autoscaler._private.local.config import prepare_local
from ray.autoscaler._private.util import fillout_defaults, validate_config

from raymq.cluster.cli import main_group
from raymq.cluster.cluster_config import ClusterConfig

SCHEMAS = Path(__file__).with_name("schemas")
CLOUDS = ["ray-up-aws.yaml", "ray-up-gcp.yaml"]
RAY_UP = ["ray-up-local.yaml", *CLOUDS]
#: The settings that matter by measurement, on the head and on the workers; ray-up-local.yaml has the reasons.
ON_HEADS = {
    "RAY_worker_niceness": "0",
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "3000",
}
ON_WORKERS = {
    "RAY_worker_niceness": "0",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "3000",
}


@pytest.fixture(scope="module")
def configs(repository: Path) -> Path:
    return repository / "configs"


def schema(name: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(lzma.decompress((SCHEMAS / name).read_bytes()))
    return made


def strict_schema(node: Any) -> Any:
    """Return a Kubernetes schema that refuses unknown keys; Kubernetes itself drops them silently."""
    if isinstance(node, list):
        return [strict_schema(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: strict_schema(each) for key, each in node.items()}
    properties = node.get("properties")
    if isinstance(properties, dict) and "type" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text("utf-8")) if each]


def load_ray_up(configs: Path, name: str) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((configs / name).read_text("utf-8"))
    return made


def exported_variables(commands: list[str]) -> dict[str, str]:
    """Return the Ray variables that the start commands export."""
    return dict(re.findall(r"\b((?:RAY|AUTOSCALER)_\w+)=(\S+?);?(?=\s|$)", " ".join(commands)))


def ray_start_words(commands: list[str]) -> list[str]:
    """Return the words of the only `ray start` command."""
    (command,) = [part for each in commands for part in each.split(";") if part.strip().startswith("ray start")]
    return shlex.split(command)


def raymq_start_words(commands: list[str]) -> list[str]:
    (command,) = [each for each in commands if " cluster start " in each]
    return shlex.split(command[command.index("cluster start") :])


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_up_file_is_valid_for_ray(configs: Path, name: str) -> None:
    made = load_ray_up(configs, name)
    if name == "ray-up-local.yaml":
        made, _ = prepare_local(made)
        node = made["available_node_types"]["local.cluster.node"]
        assert node["min_workers"] == node["max_workers"] == len(made["provider"]["worker_ips"])
    validate_config(fillout_defaults(made))


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_validation_finds_unknown_keys(configs: Path, name: str) -> None:
    made = load_ray_up(configs, name)
    made["worker_setup_command"] = []
    with pytest.raises(Exception, match="worker_setup_command"):
        validate_config({**made, "cluster_synced_files": []})


@pytest.mark.parametrize("name", CLOUDS)
def test_cloud_machines_are_on_demand_and_fixed_in_number(configs: Path, name: str) -> None:
    made = load_ray_up(configs, name)
    worker = made["available_node_types"]["worker"]
    assert worker["min_workers"] == worker["max_workers"] == made["max_workers"]
    assert not re.search("spot|preemptible", json.dumps(made), re.IGNORECASE)
    assert made["provider"]["cache_stopped_nodes"] is False
    assert "," not in made["provider"]["availability_zone"]
    for role, node_type in (("head", "head"), ("worker", "worker")):
        commands = made[f"{role}_start_ray_commands"]
        provider = made["provider"]["type"]
        assert commands[1] == f"sh ~/data-volume.sh {provider} {made['cluster_name']} {role} /data"
        assert "--root /data/raymq --mounted" in commands[2]
        assert made["available_node_types"][node_type]["node_config"]


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_start_has_the_measured_settings(configs: Path, name: str) -> None:
    made = load_ray_up(configs, name)
    head, workers = made["head_start_ray_commands"], made["worker_start_ray_commands"]
    assert (
        exported_variables(head).items()
        >= {**ON_HEADS, "RAY_AUTH_MODE": "token", "RAY_enable_autoscaler_v2": "0"}.items()
    )
    assert exported_variables(workers).items() >= {**ON_WORKERS, "RAY_AUTH_MODE": "token"}.items()
    assert exported_variables(head)["RAY_gcs_storage"] == "rocksdb"
    assert int(exported_variables(workers)["RAY_gcs_rpc_server_reconnect_timeout_s"]) >= 60
    for commands in (head, workers):
        assert any(
            word.startswith("--resources=$(raymq cluster host-resources --root") for word in ray_start_words(commands)
        )
    assert made["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


@pytest.mark.parametrize("name", RAY_UP)
def test_installed_ray_version_is_the_required_one(configs: Path, name: str) -> None:
    assert f"'ray[default]=={version('ray')}'" in " ".join(load_ray_up(configs, name)["setup_commands"])


@pytest.mark.parametrize("name", RAY_UP)
def test_mounted_files_exist(repository: Path, configs: Path, name: str) -> None:
    for source in load_ray_up(configs, name)["file_mounts"].values():
        assert source in ("./dist", "~/.ray/auth_token") or (repository / source).is_file(), source


def test_all_files_start_raymq_with_the_same_options(configs: Path) -> None:
    """The options exist in the command, and the roots equal those of `host-resources`."""
    starts = {name: raymq_start_words(load_ray_up(configs, name)["head_start_ray_commands"]) for name in RAY_UP}
    (job,) = documents(configs / "kuberay" / "start.yaml")
    starts["kuberay"] = raymq_start_words(job["spec"]["template"]["spec"]["containers"][0]["command"])
    for words in starts.values():
        options = dict(zip(words[2::2], words[3::2], strict=True))
        assert {key: options[key] for key in ("--hosts", "--brokers", "--replicas", "--name-servers", "--port")} == {
            "--hosts": "3",
            "--brokers": "3",
            "--replicas": "2",
            "--name-servers": "3",
            "--port": "9876",
        }
        helped = CliRunner().invoke(main_group, [*words[:2], "--help"]).output
        assert [key for key in options if key not in helped] == []
    for name in RAY_UP:
        made = load_ray_up(configs, name)
        root = starts[name][starts[name].index("--root") + 1]
        for commands in (made["head_start_ray_commands"], made["worker_start_ray_commands"]):
            assert f"host-resources --root {root}" in " ".join(commands)


def test_kuberay_settings_equal_replicated_yaml(configs: Path) -> None:
    (settings,) = [each for each in documents(configs / "kuberay" / "cluster.yaml") if each["kind"] == "ConfigMap"]
    config = yaml.safe_load(settings["data"]["raymq.yaml"])
    assert ClusterConfig.load(config) == ClusterConfig.load(configs / "replicated.yaml")


@pytest.mark.parametrize("name", ["cluster.yaml", "start.yaml"])
def test_manifests_are_valid_for_kubernetes(configs: Path, name: str) -> None:
    known, ray_cluster = schema("kubernetes-1.37.0.json.xz"), schema("kuberay-1.7.0-raycluster-v1.json.xz")
    for each in documents(configs / "kuberay" / name):
        if each["kind"] == "RayCluster":
            assert each["apiVersion"] == "ray.io/v1"
            validator = Draft7Validator(strict_schema(ray_cluster) | {"additionalProperties": True})
        else:
            validator = Draft7Validator({"$ref": f"#/$defs/{known['kinds'][each['kind']]}", "$defs": known["$defs"]})
        assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(each)] == []


def test_kuberay_worker_is_probed_where_it_answers(configs: Path) -> None:
    (made,) = documents(configs / "kuberay" / "worker.yaml")
    known = schema("kubernetes-1.37.0.json.xz")
    (pod,) = [name for name in known["$defs"] if name.endswith("PodTemplateSpec")]
    validator = Draft7Validator({"$ref": f"#/$defs/{pod}", "$defs": known["$defs"]})
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(made["spec"]["template"])] == []
    (container,) = made["spec"]["template"]["spec"]["containers"]
    port = container["args"][container["args"].index("--health-port") + 1]
    assert container["ports"] == [{"containerPort": int(port), "name": "health"}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
    helped = CliRunner().invoke(main_group, ["worker", "--help"]).output
    assert [word for word in container["args"] if word.startswith("--") and word not in helped] == []


@pytest.mark.parametrize("key", ["terminationGracePeriodSecond", "volume"])
def test_kubernetes_validation_finds_unknown_keys(configs: Path, key: str) -> None:
    made = ray_cluster(configs)
    made["spec"]["workerGroupSpecs"][0]["template"]["spec"][key] = 1
    found = Draft7Validator(strict_schema(schema("kuberay-1.7.0-raycluster-v1.json.xz"))).iter_errors(made)
    assert any(key in error.message for error in found)


def ray_cluster(configs: Path) -> dict[str, Any]:
    (made,) = [each for each in documents(configs / "kuberay" / "cluster.yaml") if each["kind"] == "RayCluster"]
    return made


def test_each_pod_has_its_own_disk_name_and_leave_hook(configs: Path) -> None:
    made = ray_cluster(configs)["spec"]
    groups = [made["headGroupSpec"], *made["workerGroupSpecs"]]
    claims = [each for each in documents(configs / "kuberay" / "cluster.yaml") if each["kind"].endswith("VolumeClaim")]
    used, names = [], []
    for group in groups:
        pod = group["template"]["spec"]
        (data,) = [each for each in pod["volumes"] if each["name"] == "data"]
        used.append(data["persistentVolumeClaim"]["claimName"])
        # A shell passes the words between the outer quotes to Ray.
        ((resource, amount),) = json.loads(*shlex.split(group["rayStartParams"]["resources"])).items()
        assert amount == 1
        names.append(resource)
        (container,) = pod["containers"]
        assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
        hook = container["lifecycle"]["preStop"]["exec"]["command"][-1]
        assert hook.startswith("raymq cluster leave --timeout 60")
        assert pod["terminationGracePeriodSeconds"] >= 60 + 30
        assert pod["securityContext"]["runAsNonRoot"]
        assert group["template"]["metadata"]["labels"] == {"app": "raymq"}
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert variables.items() >= (ON_HEADS if group is groups[0] else ON_WORKERS).items()
    assert sorted(used) == sorted(each["metadata"]["name"] for each in claims)
    assert len(set(names)) == len(groups)
    assert all(name.startswith("broker_") for name in names)
    for group in made["workerGroupSpecs"]:
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 1
    assert made["enableInTreeAutoscaling"] is False
    assert made["rayVersion"] == version("ray")


def test_image_runs_as_non_root_with_the_required_versions(repository: Path, configs: Path) -> None:
    text = (configs / "docker" / "Dockerfile").read_text("utf-8")
    lines = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    instructions = [line.split(maxsplit=1) for line in lines.splitlines() if line.strip()]
    assert {name for name, _ in instructions} <= {
        *("FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "CMD"),
    }
    final = instructions[max(at for at, (name, _) in enumerate(instructions) if name == "FROM") :]
    assert ["USER", "1000:1000"] in final
    assert f"'ray[default]=={version('ray')}' . ./native" in text
    for name, what in instructions:
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", what], check=True)
    (command,) = [json.loads(what) for name, what in instructions if name == "CMD"]
    helped = CliRunner().invoke(main_group, [*command[1:3], "--help"]).output
    assert all(word in helped for word in command[3::2])
    left_out = (repository / ".dockerignore").read_text("utf-8").split()
    assert not {"native", "storage", "pyproject.toml", "LICENSE", "README.md"} & set(left_out)
