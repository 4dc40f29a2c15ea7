"""Kafka with three brokers, acks=all, beside the same brokers' topic of one copy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.command_program import CommandProgram
from tests.bench.foreign import interpreter, kafka_jars
from tests.bench.sides import ExternalSide, Places, Side


@contextmanager
def kafka_sides(places: Places, folder: Path) -> Iterator[list[Side]]:
    """Its client is librdkafka in Python; it starts the brokers, too."""
    told = json.dumps([[place.address, list(place.inside)] for place in places.brokers])
    command = [interpreter(), str(Path(__file__).with_name("kafka_sends.py")), kafka_jars(), told]
    with CommandProgram(command, folder, folder / "kafka.log") as client:
        master, *others = json.loads(client.ready)
        followers = {f"replica {number}": pid for number, pid in enumerate(others, 2)}
        yield [
            ExternalSide("Kafka, one copy", 1, {"master": master}, client, "one"),
            ExternalSide(
                f"Kafka, {1 + len(others)} copies, acks=all", 3, {"master": master, **followers}, client, "all"
            ),
        ]
