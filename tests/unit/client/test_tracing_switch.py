"""Test that tracing and metrics load their libraries only where the program wants them."""

from __future__ import annotations

import pickle
import sys

import pytest

from raymq.client import Connection, InvalidInput, Producer
from raymq.client.produce.producer import TracedProducer
from raymq.cluster import connect
from tests.unit.test_import_closure import loaded_by

ADDRESS = "127.0.0.1:1"


def test_connection_without_tracing_loads_no_library() -> None:
    program = f"""
from raymq.client import *
mq = Connection([{ADDRESS!r}])
producer = Producer(mq, "p")
mq.loop
mq.close()
"""
    modules = loaded_by(program)
    assert not {name.partition(".")[0] for name in modules} & {"opentelemetry", "prometheus_client", "ray"}


def test_tracing_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with Connection([ADDRESS]):
        pass
    with pytest.raises(InvalidInput, match="opentelemetry-api") as refused:
        connect(name_servers=ADDRESS, tracing=True)
    assert refused.value.field == "tracing"
    assert refused.value.remedy == 'pip install "raymq[otel]"'


@pytest.mark.parametrize("wrong", [None, 1, "yes"])
def test_tracing_is_true_or_false(wrong: object) -> None:
    with pytest.raises((InvalidInput, TypeError)):
        Connection([ADDRESS], tracing=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("tracing", [True, False])
def test_tracing_survives_pickle_and_chooses_the_producer(tracing: bool) -> None:
    with connect(name_servers=ADDRESS, tracing=tracing) as mq, pickle.loads(pickle.dumps(mq)) as again:
        for each in (mq, again):
            with Producer(each, "p") as producer:
                assert type(producer) is (TracedProducer if tracing else Producer)
