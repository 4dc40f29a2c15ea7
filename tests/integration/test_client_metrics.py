"""Test the metrics of real clients in prometheus_client's default registry and in Ray's."""

from __future__ import annotations

import prometheus_client
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def value(name: str, **labels: str) -> float | None:
    return prometheus_client.REGISTRY.get_sample_value(name, labels)


def sends(group: str, outcome: str = "ok", topic: str = "t") -> float | None:
    return value("raymq_client_sends_total", client="producer", group=group, topic=topic, outcome=outcome)
