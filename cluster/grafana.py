"""Give out the Grafana dashboards and the alert rules of Prometheus.

They are written for the names on a broker's `/metrics`. `with_ray_names` converts them to the names on Ray's port.
"""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Final

from raymq.storage.errors import InvalidInput

DASHBOARDS: Final = ("raymq_cluster_grafana_dashboard.json", "raymq_group_grafana_dashboard.json")
ALERTS: Final = "raymq_alerts.yaml"
_NAME: Final = re.compile(r"\b(?:rocketmq|raymq)_[a-z_]+")
_PARTS: Final = ("_bucket", "_sum", "_count")


def with_ray_names(text: str) -> str:
    """Return dashboards or rules for the metrics on Ray's port.

    Ray exports a counter as `ray_raymq_..._total`, and the parts of a histogram are counters there; see `RayExporter`.
    """

    def converted(match: re.Match[str]) -> str:
        name = match.group().removeprefix("rocketmq_").removeprefix("raymq_")
        return f"ray_raymq_{name}_total" if name.endswith(_PARTS) else f"ray_raymq_{name}"

    return _NAME.sub(converted, text)


def dashboards(*, ray: bool) -> dict[str, str]:
    """Return the dashboards by file name, as JSON.

    With `ray` for the metrics on Ray's port.
    """
    found = {name: _text(name) for name in DASHBOARDS}
    return {name: with_ray_names(text) for name, text in found.items()} if ray else found


def alerts(*, ray: bool) -> str:
    """Return the alert rules, as YAML; with `ray` for the metrics on Ray's port."""
    return with_ray_names(_text(ALERTS)) if ray else _text(ALERTS)


def ray_dashboard_folder() -> Path:
    """Return the folder of the dashboards that Ray has written for Grafana on this machine.

    Raise InvalidInput if this machine has none: it is not the head of a Ray with a dashboard.
    """
    root = os.environ.get("RAY_METRICS_OUTPUT_ROOT") or "/tmp/ray/session_latest/metrics"  # noqa: S108 - Ray's default
    folder = Path(root) / "grafana" / "dashboards"
    if not folder.is_dir():
        raise InvalidInput(
            "--install",
            "a machine on which Ray's dashboard runs (ray start --head)",
            str(folder),
            remedy="run it on the head, or write the files with --output FOLDER and import them into Grafana",
        )
    return folder


def write(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Write the files, replacing older ones; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in texts.items():
        json.loads(text)
        path = folder / name
        path.write_text(text)
        paths.append(path)
    return paths


def _text(name: str) -> str:
    return files("raymq.configs").joinpath("grafana", name).read_text()
