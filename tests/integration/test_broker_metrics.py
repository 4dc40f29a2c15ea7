"""Test the metrics of a broker on the port for Prometheus, with RocketMQ's names."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from raymq.actors.broker import topic_metrics
from raymq.actors.broker.service import BrokerService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.metrics import series_limit
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import BrokerSpec, NameServerSpec
from raymq.client import Admin, Connection, Message, Producer, PullConsumer, SimpleConsumer
from raymq.cluster import grafana
from raymq.cluster.cli import main_group
from tests.polling import poll_until

pytestmark = pytest.mark.integration

GOLDEN = Path(__file__).parents[1] / "golden" / "rocketmq_metrics.json"
STORE = {"commitlog_file_bytes": 1 << 20, "index_slots": 500, "index_entries": 4_000}

#: What a broker without replicas does not publish.
ONLY_WITH_REPLICAS = ("raymq_in_sync_replicas", "raymq_replica_lag_bytes", "raymq_replicate_seconds_bucket")

#: What is published after the first dead letter, refused append, or member.
ONLY_AFTER_EVENTS = ("dead_letters", "send_to_dlq", "refused_appends", "consumer_connections")

Labels = frozenset[tuple[str, str]]


@dataclass
class Scraped:
    """The samples of one scrape, by name and labels."""

    samples: dict[str, dict[Labels, float]]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the series that have these labels; fail if there is none."""
        found = [value for has, value in self.samples[name].items() if has >= labels.items()]
        assert found, (name, labels, list(self.samples[name]))
        return sum(found)


@dataclass
class MeasuredBroker:
    """A broker with a port for Prometheus."""

    service: BrokerService
    loop: EventLoopThread
    mq: Connection

    @property
    def address(self) -> str:
        (address,) = Admin(self.mq).cluster_info().metrics
        return address

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def scrape(self) -> Scraped:
        samples: dict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                samples[sample.name][frozenset(sample.labels.items())] = sample.value
        return Scraped(samples)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MeasuredBroker]:
    loop = EventLoopThread("services")
    name_server = loop.run(NameServerService.start(NameServerSpec(0, str(tmp_path), "127.0.0.1", 0)))
    names = (name_server.address,)
    spec = BrokerSpec(
        "broker-a",
        "test",
        str(tmp_path / "broker-a"),
        "127.0.0.1",
        names,
        append_wait_ms=60_000,
        store=STORE,
        metrics="prometheus",
    )
    service = loop.run(BrokerService.start(spec, "node"))
    with Connection(list(names)) as mq:
        yield MeasuredBroker(service, loop, mq)
    loop.run(service.stop())
    loop.run(name_server.stop())
    loop.stop()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def use(mq: Connection) -> None:
    """Store, deliver, fail and commit some messages."""
    admin = Admin(mq)
    admin.create_topic("t", queues=1)
    with Producer(mq, "p") as producer, PullConsumer(mq, "pulling") as pull:
        producer.send_batch([Message("t", bytes(2_000)) for _ in range(10)])
        (queue,) = pull.queues("t")
        pull.seek(queue, "earliest")
        assert len(pull.poll(queue, 4)) == 4
        pull.commit(queue, 4)
        with producer.transaction(Message("t", b"committed")):
            pass
        producer.begin(Message("t", b"rolled back")).rollback()
        producer.begin(Message("t", b"open"))
    with SimpleConsumer(mq, "popping", {"t": "*"}) as consumer:
        received = []
        while len(received) < 5:
            received += consumer.receive(5 - len(received), invisible_duration=60.0)
        consumer.ack(received[1:])


def test_metrics_have_the_names_and_labels_of_rocketmq(broker: MeasuredBroker) -> None:
    """The golden file is the scrape of a RocketMQ 5.3.3 broker."""
    use(broker.mq)
    golden = json.loads(GOLDEN.read_text())
    ours = broker.loop.run(broker.service.metric_families())
    base = {"cluster", "node_type", "node_id"}
    known = [family for family in ours if family.name.startswith("rocketmq_")]
    assert len(known) >= 24
    for family in known:
        assert family.name in golden, family.name
        expected = golden[family.name]
        assert family.kind == expected["kind"]
        assert {*family.labels, *base} >= {*expected["labels"]} - {"is_retry"}, family.name
        assert {*expected["labels"], "is_retry"} >= {*family.labels, *base}, family.name
        for sample in family.samples.values() if family.kind == "histogram" else ():
            assert [*map(str, map(float, sample.bounds)), "+Inf"] == expected["bounds"], family.name


def test_metrics_count_what_clients_did(broker: MeasuredBroker) -> None:
    use(broker.mq)
    found = broker.scrape()
    assert found.value("rocketmq_messages_in_total", topic="t", node_id="broker-a", cluster="test") == 11
    assert found.value("rocketmq_throughput_in_total", topic="t") > 20_000
    assert found.value("rocketmq_message_size_count", topic="t") == 11
    assert found.value("rocketmq_message_size_bucket", topic="t", le="4096.0") == 11
    assert found.value("rocketmq_messages_out_total", consumer_group="popping") == 5
    assert found.value("rocketmq_consumer_lag_messages", consumer_group="pulling", topic="t") == 7
    assert found.value("rocketmq_consumer_lag_messages", consumer_group="popping", topic="t") == 11
    assert found.value("rocketmq_consumer_inflight_messages", consumer_group="popping", topic="t") == 1
    assert found.value("rocketmq_consumer_ready_messages", consumer_group="popping", topic="t") == 6
    unknown = {("consumer_group", "pulling"), ("topic", "t")}
    assert not any(labels >= unknown for labels in found.samples["rocketmq_consumer_inflight_messages"])
    assert found.value("rocketmq_consumer_ready_messages", consumer_group="pulling", topic="t") == 7
    assert found.value("rocketmq_commit_messages_total", topic="t") == 1
    assert found.value("rocketmq_rollback_messages_total", topic="t") == 1
    assert found.value("rocketmq_half_messages", topic="t") == 1
    assert found.value("rocketmq_rpc_latency_milliseconds_count", request_code="pop_message", result="success") >= 1
    assert found.value("raymq_append_seconds_count") >= 3
    assert found.value("raymq_deliver_seconds_count") >= 1
    assert found.value("raymq_up") == found.value("raymq_is_master") == 1
    assert 0 < found.value("raymq_disk_ratio") < 1
    assert found.value("raymq_series") == sum(map(len, found.samples.values()))
    poll_until(lambda: broker.scrape().value("raymq_flush_seconds_count") >= 1, 30)


def test_small_topics_and_groups_become_other(broker: MeasuredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(broker.mq)
    with Producer(broker.mq, "p") as producer, PullConsumer(broker.mq, "g") as pull:
        for number in range(30):
            admin.create_topic(f"topic-{number}", queues=1)
            producer.send_batch([Message(f"topic-{number}", b"x") for _ in range(number + 1)])
            pull.commit(pull.queues(f"topic-{number}")[0], 0)
    monkeypatch.setattr(broker.service.leader.metrics._topics, "budget", 200)
    found = broker.scrape()
    assert found.value("rocketmq_messages_in_total") == sum(range(31))
    assert found.value("rocketmq_messages_in_total", topic=series_limit.OTHER) > 0
    assert found.value("rocketmq_messages_in_total", topic="topic-29") == 30
    assert found.value("rocketmq_consumer_lag_messages") == sum(range(31))
    assert found.value("rocketmq_consumer_lag_messages", topic=series_limit.OTHER) > 0
    subjects = found.value("raymq_unnamed_subjects")
    assert subjects > 20
    named = [name for name in found.samples if name.startswith("rocketmq_me") or "consumer_" in name]
    assert sum(len(found.samples[name]) for name in named) <= 200 + topic_metrics.TOPIC_SERIES * 3
    assert found.value("raymq_series") < 600


def test_health_pages(broker: MeasuredBroker) -> None:
    assert broker.get("/healthz") == (200, "ok\n")
    assert broker.get("/readyz") == (200, "ok\n")
    code, page = broker.get("/")
    assert code == 200
    assert "no access control" in page
    assert broker.get("/secret")[0] == 404


def expressions(ray: bool) -> list[str]:
    """Return the expressions of all dashboards and alert rules."""
    panels = [panel for text in grafana.dashboards(ray=ray).values() for panel in json.loads(text)["panels"]]
    rules = [rule for group in yaml.safe_load(grafana.alerts(ray=ray))["groups"] for rule in group["rules"]]
    return [each["expr"] for panel in panels for each in panel["targets"]] + [rule["expr"] for rule in rules]


def test_dashboards_and_alerts_use_existing_metrics(broker: MeasuredBroker) -> None:
    """Names and labels of every expression are in a scrape of a broker that was used; `le` is a histogram's."""
    use(broker.mq)
    with PullConsumer(broker.mq, "g") as pull:
        pull.commit(pull.queues("t")[0], 0)
    samples = broker.scrape().samples
    families = broker.loop.run(broker.service.metric_families())
    base = {"cluster", "node_type", "node_id", "le"}
    labels = {name: {key for has in series for key, _ in has} | {"le"} for name, series in samples.items()}
    labels |= {family.name: {*family.labels, *base} for family in families}
    labels |= dict.fromkeys(ONLY_WITH_REPLICAS, base)
    found = expressions(ray=False)
    assert len(found) > 40
    for expression in found:
        names = set(re.findall(r"\b(?:rocketmq|raymq)_[a-z_]+", expression))
        assert names, expression
        assert names <= labels.keys(), expression
        grouped = {each.strip() for part in re.findall(r"by \(([^)]*)\)", expression) for each in part.split(",")}
        selected = set(re.findall(r'(\w+)=~?"', expression))
        for name in names:
            assert grouped | selected <= labels[name], (name, expression)


def test_dashboards_for_ray_have_the_names_of_rays_port(broker: MeasuredBroker) -> None:
    use(broker.mq)
    families = {family.name: family for family in broker.loop.run(broker.service.metric_families())}
    exported = set()
    for family in families.values():
        if family.kind == "histogram":
            exported |= {f"ray_{family.ray_name}_{part}_total" for part in ("bucket", "sum", "count")}
        else:
            exported.add(f"ray_{family.ray_name}" + "_total" * (family.kind == "counter"))
    exported |= {f"ray_{name}" for name in ONLY_WITH_REPLICAS if not name.endswith("_bucket")}
    exported |= {f"ray_{name}_total" for name in ONLY_WITH_REPLICAS if name.endswith("_bucket")}
    for expression in expressions(ray=True):
        assert set(re.findall(r"ray_raymq_\w+", expression)) <= exported, expression


def test_metrics_commands(broker: MeasuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> Result:
        servers = ["--name-servers", ";".join(broker.mq.name_servers)]
        return CliRunner().invoke(main_group, [*servers, "metrics", *arguments])

    assert json.loads(run("list", "--json").stdout) == [{"broker": "broker-a", "replica": 0, "metrics": broker.address}]
    written = json.loads(run("grafana", "--prometheus", "--output", str(tmp_path / "new"), "--json").stdout)
    assert [json.loads(Path(path).read_text())["title"] for path in written] == [
        "RayMQ: cluster",
        "RayMQ: one consumer group",
    ]
    monkeypatch.setenv("RAY_METRICS_OUTPUT_ROOT", str(tmp_path / "metrics"))
    refused = run("grafana", "--install")
    assert refused.exit_code == 1
    assert "on the head" in str(refused.exception)
    folder = tmp_path / "metrics" / "grafana" / "dashboards"
    folder.mkdir(parents=True)
    assert run("grafana", "--install").exit_code == 0
    assert "ray_raymq_messages_in_total" in (folder / grafana.DASHBOARDS[0]).read_text()
    assert yaml.safe_load(run("alerts").stdout)["groups"][0]["name"] == "raymq"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus in PATH")
def test_prometheus_answers_every_expression_under_load(broker: MeasuredBroker, tmp_path: Path) -> None:
    scrape = {"job_name": "raymq", "static_configs": [{"targets": [broker.address]}]}
    (tmp_path / "prometheus.yaml").write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]})
    )
    port = free_port()
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yaml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def query(expression: str) -> list[object]:
        values = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{values}", timeout=10) as answer:
            found: list[object] = json.load(answer)["data"]["result"]
        return found

    def asked(expression: str) -> str:
        return expression.replace("$cluster", ".*").replace("$group", "popping")

    try:
        use(broker.mq)
        with Producer(broker.mq, "p") as producer:

            def is_rated() -> bool:
                producer.send_batch([Message("t", b"x") for _ in range(100)])
                with contextlib.suppress(OSError):
                    return bool(query('rate(rocketmq_messages_in_total{topic="t"}[1m]) > 0'))
                return False

            poll_until(is_rated, 60, "Prometheus has scraped the broker twice")
            panels = expressions(ray=False)[:-9]
            empty = [each for each in panels if not query(asked(each))]
        assert all(any(name in each for name in [*ONLY_WITH_REPLICAS, *ONLY_AFTER_EVENTS]) for each in empty), empty
        for rule in expressions(ray=False)[-9:]:
            query(rule)
    finally:
        process.terminate()
        process.wait(30)
