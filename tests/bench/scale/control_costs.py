"""What is asked of name servers and of brokers because there are many of them, or many clients: the cost of each.

Nothing else is asked of the process meanwhile, and its processor time is read before and after.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from raymq.actors.protocol import QueueData
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.registration_commands import heartbeat_command, register_command, topics_json
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group_headers import GetConsumerListByGroup
from raymq.actors.wire.headers.route_headers import GetRouteInfo, QueryDataVersion, RegisterBroker
from raymq.storage.files.json_file import DataVersion
from tests.bench.command_program import CommandProgram
from tests.bench.processor_time import processor_us
from tests.bench.scale.process_figures import memory_mib
from tests.bench.scale.rows import Row, RowCollector
from tests.broker_process import BrokerProcess
from tests.integration.foreign_client import ForeignClient

PART: Final = "control"
TOPICS: Final = (100, 1_000, 10_000)
#: The brokers that a topic is on.
WIDTHS: Final = (1, 10, 100)
MEMBERS: Final = (10, 100, 1_000)
_QUEUES: Final = 8
_CLUSTER: Final = "scale"
_VERSION: Final = DataVersion(1, 1, 0)
_OWN: Final = "memory of its own"
#: How many large registrations are measured.
_REGISTRATIONS: Final = 5
_ANSWER_SECONDS: Final = 60.0


def run(samples: int, folder: Path, collector: RowCollector) -> None:
    """All rows. `samples`: calls of each kind."""
    with collector.step("name server"):
        collector.add(_name_server(samples, folder))
    with collector.step("members of groups"):
        collector.add(_members(samples, folder))


def _name_server(samples: int, folder: Path) -> Iterator[Row]:
    program = str(Path(__file__).with_name("name_server_process.py"))
    with ExitStack() as stack:
        server = stack.enter_context(
            CommandProgram([sys.executable, program, str(folder)], folder, folder / "names.log")
        )

        def connection() -> ForeignClient:
            return stack.enter_context(ForeignClient(server.ready))

        def row(stage: str, name: str, value: float, unit: str) -> Row:
            return Row(PART, "name server", stage, name, value, unit)

        broker = connection()
        for topics in TOPICS:
            stage = f"{topics:,} topics"
            register = _registration("broker-0", topics)
            broker.done(register())
            before = memory_mib(server.pid)[_OWN]
            others = [connection() for _ in range(_REGISTRATIONS)]
            commands = [_registration(f"broker-{number}", topics)() for number in range(1, _REGISTRATIONS + 1)]
            used = _processor_us(server.pid, (_send_request(o, c) for o, c in zip(others, commands, strict=True)))
            held = (memory_mib(server.pid)[_OWN] - before) * 2**20
            yield row(stage, "CPU of a registration", used / 1000, "ms")
            yield row(stage, "memory of a topic of a broker", held / _REGISTRATIONS / topics, "bytes")
            beat = heartbeat_command(_broker_header("broker-0", QueryDataVersion), _VERSION)
            used = _processor_us(server.pid, (_send_request(broker, beat) for _ in range(samples)))
            yield row(stage, "CPU of a heartbeat", used, "us")
        for width in WIDTHS:
            wide = [
                (_registration(f"wide-{width}-{number}", 1, f"wide{width}-"), connection()) for number in range(width)
            ]
            for register, on in wide:
                on.done(register())
            question = GetRouteInfo(f"wide{width}-0", raymq_limits=True, raymq_away=True).command()
            used = _processor_us(server.pid, (_send_request(broker, question) for _ in range(max(1, samples // 5))))
            yield row(f"a topic on {width}", "CPU of a route", used, "us")


def _members(samples: int, folder: Path) -> Iterator[Row]:
    process = BrokerProcess("broker-a", folder, is_forked=False)
    try:
        told = json.loads((folder / "broker-a" / "raymq" / "broker.json").read_text())
        process.tell(f"topics 1 {_QUEUES}")
        with ForeignClient(f"127.0.0.1:{told['port']}") as client:
            for members in MEMBERS:
                group, stage = f"group{members}", f"{members:,} members"
                for number in range(members):
                    client.done(_heartbeat(group, number))
                beats = (_send_request(client, _heartbeat(group, number % members)) for number in range(samples))
                yield Row(PART, "broker", stage, "CPU of a member's heartbeat", _processor_us(process.pid, beats), "us")
                question = GetConsumerListByGroup(group, owners=True).command()
                lists = (_send_request(client, question) for _ in range(max(1, samples // 5)))
                yield Row(PART, "broker", stage, "CPU of a list of members", _processor_us(process.pid, lists), "us")
    finally:
        process.stop(60)


def _heartbeat(group: str, number: int) -> Command:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": "new0", "subString": "*", "expressionType": "TAG"}],
    }
    body = {"clientID": f"{group}-{number}", "producerDataSet": [], "consumerDataSet": [consumer]}
    return Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def _broker_header(broker: str, header: Callable[[str, str, int, str], Any]) -> Any:
    port = 10_000 + sum(map(ord, broker)) + 100 * int(broker.rpartition("-")[2])
    return header(_CLUSTER, broker, 0, f"127.0.0.1:{port}")


def _registration(broker: str, topics: int, prefix: str = "t") -> Callable[[], Command]:
    table = {f"{prefix}{number}": QueueData(broker, _QUEUES, _QUEUES) for number in range(topics)}
    part = topics_json(table)
    return lambda: register_command(_broker_header(broker, RegisterBroker), _VERSION, [part])


def _send_request(connection: ForeignClient, command: Command) -> None:
    answer = connection.ask(command, _ANSWER_SECONDS)
    if answer.code != 0:
        raise RuntimeError(f"refused: {answer.code} {answer.remark}")


def _processor_us(pid: int, calls: Iterable[None]) -> float:
    """What a call costs the process."""
    before = processor_us(pid)
    count = sum(1 for _ in calls)
    return (processor_us(pid) - before) / count
