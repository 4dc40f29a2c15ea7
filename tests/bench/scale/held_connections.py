"""Connections of consumers that have nothing to do: each sends its heartbeat every half minute.

A program: held_connections.py ADDRESS COUNT. Prints "ready" once all are there, and ends with its standard input.
Ten of them are a group, each group subscribes to a topic of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # run as a program: the tests' folder is not installed

from raymq.actors.wire import frame
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command

#: As RocketMQ's clients do it.
_HEARTBEAT_SECONDS: Final = 30.0
_MEMBERS: Final = 10
#: So many are opened at a time: a server's backlog has an end.
_AT_A_TIME: Final = 100


def heartbeat(number: int) -> bytes:
    """What the client of this number says."""
    group = number // _MEMBERS
    consumer = {
        "groupName": f"held{group}",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": f"t{group}", "subString": "*", "expressionType": "TAG"}],
    }
    body = {"clientID": f"held-client-{number}", "producerDataSet": [], "consumerDataSet": [consumer]}
    command = Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode(), language="JAVA")
    return frame.encode(command) + bytes(command.body)


async def hold(address: str, count: int) -> None:
    """All of them, until standard input ends."""
    host, _, port = address.rpartition(":")
    held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 12)
        held.append((reader, writer))
        while True:
            writer.write(heartbeat(number))
            size = int.from_bytes(await reader.readexactly(4), "big")
            await reader.readexactly(size)
            answered.release()
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    answered = asyncio.Semaphore(0)
    tasks = []
    for first in range(0, count, _AT_A_TIME):
        some = range(first, min(count, first + _AT_A_TIME))
        tasks += [asyncio.create_task(one(number)) for number in some]
        for _ in some:
            waiting = asyncio.ensure_future(answered.acquire())
            done, _ = await asyncio.wait([waiting, *tasks[first:]], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {waiting}:
                task.result()
            await waiting
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(Exception):
        await asyncio.gather(*tasks, return_exceptions=True)
    for _, writer in held:
        writer.close()


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], int(sys.argv[2])))
