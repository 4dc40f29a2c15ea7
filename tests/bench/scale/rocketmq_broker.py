"""RocketMQ's broker, measured as ours is.

It keeps a file and a mapping open for each queue, so it may get fewer topics.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.bench.foreign import rocketmq_jars
from tests.bench.foreign_servers import free_port, running
from tests.bench.rocketmq_sides import java_command
from tests.bench.scale.brokers import STOP_SECONDS, seconds_until_it_answers
from tests.bench.scale.plain_client import PlainClient
from tests.bench.scale.size import Size

_HEAP: Final = "4g"
_MAPPINGS: Final = Path("/proc/sys/vm/max_map_count")
_SETTINGS: Final[Mapping[str, object]] = {
    "brokerClusterName": "scale",
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "autoCreateTopicEnable": "false",
    "diskMaxUsedSpaceRatio": 95,
    "timerWheelEnable": "true",
    # As ours has it here: by its default, too, it refuses what waits for 0.2 s.
    "waitTimeMillsInSendQueue": 30_000,
}


class RocketMQBroker:
    """One broker with a name server, both in Java, with the settings that they come with."""

    name = "RocketMQ"

    def __init__(self, folder: Path, size: Size, stack: ExitStack) -> None:
        """Raises OSError or subprocess.SubprocessError where it cannot be had."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.size = size.with_a_file_for_each_queue(files, int(_MAPPINGS.read_text()))
        self._folder = folder
        self._jars = rocketmq_jars()
        self._environment = os.environ | {"ROCKETMQ_HOME": str(folder)}
        names, port = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        command = [*self._java("names", "512m"), "org.apache.rocketmq.namesrv.NamesrvStartup", "-c"]
        command.append(self._file("names", {"listenPort": names}))
        stack.enter_context(running(command, lambda: None, self._environment, is_one_of_many=True))
        store = {"storePathRootDir": folder / "store", "storePathCommitLog": folder / "store" / "commitlog"}
        settings = {**_SETTINGS, **store, "listenPort": port, "haListenPort": free_port()}
        self._command = [*self._java("broker", _HEAP), "org.apache.rocketmq.broker.BrokerStartup", "-c"]
        self._command.append(self._file("broker", {**settings, "namesrvAddr": f"127.0.0.1:{names}"}))
        stack.callback(self.kill)

    def make_topics(self, count: int) -> None:
        queues = self.size.queues
        table = {
            f"t{n}": {
                "topicName": f"t{n}",
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
                "attributes": {},
            }
            for n in range(count)
        }
        version = {"counter": 1, "stateVersion": 0, "timestamp": time.time_ns() // 1_000_000}
        file = self._folder / "store" / "config" / "topics.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".json.bak").unlink(missing_ok=True)
        file.write_text(json.dumps({"dataVersion": version, "topicConfigTable": table}))

    def start(self) -> float:
        began = time.monotonic()
        with (self._folder / "broker.log").open("wb") as log:
            process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        self._process, self.pid = process, process.pid
        return seconds_until_it_answers(self.address, began, lambda: process.poll() is not None)

    def stop(self) -> float:
        assert self._process is not None
        began = time.monotonic()
        self._process.terminate()
        self._process.wait(STOP_SECONDS)
        return time.monotonic() - began

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(60)

    def fill(self, advance: Callable[[int], None]) -> None:
        size = self.size
        queues = (
            (f"t{topic}", queue_id)
            for _ in range(size.rounds)
            for topic in range(size.topics)
            for queue_id in range(size.queues)
        )
        with PlainClient(self.address, size.body_bytes) as client:
            for sent in client.send_batches(queues, size.batch):
                advance(sent)

    def _file(self, name: str, settings: Mapping[str, object]) -> str:
        file = self._folder / f"{name}.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(file)

    def _java(self, name: str, heap: str) -> list[str]:
        return java_command(self._jars, self._folder, name, heap)


@contextmanager
def rocketmq_broker(folder: Path, size: Size) -> Iterator[RocketMQBroker]:
    """Its processes are killed at the end."""
    with ExitStack() as stack:
        yield RocketMQBroker(folder, size, stack)
