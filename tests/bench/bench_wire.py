"""The transport alone: requests through our server and connection, beside a bare asyncio echo and a bare socket.

Run by `make bench`. Prints a table, with --json a JSON value; --profile adds where the server's time goes in 1 MiB
frames. The server is a process of its own. Compare ratios, not times: the machine is shared.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import pstats
import socket
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe

from rich.table import Table

from raymq.actors.event_loop import EventLoopThread
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.server import Server, bind
from raymq.actors.wire.server_connection import ServerConnection
from raymq.cluster.output import console

ECHO, SINK, GIVE = 1, 2, 3
SMALL, LARGE = 1024, 1024 * 1024
SINGLES, PIPELINED, DEPTH, LARGE_COUNT = 3_000, 30_000, 128, 300


def _echo(_: ServerConnection, request: Command) -> Command:
    return request.response(0, body=request.body)


def _sink(_: ServerConnection, request: Command) -> Command:
    return request.response(0)


_GIVEN = [memoryview(bytes(LARGE))]


def _give(_: ServerConnection, request: Command) -> Command:
    return request.response(0, pieces=_GIVEN)


def serve(pipe: Pipe, profile: bool) -> None:
    """Our server, a bare echo and a bare sink, until the pipe says so."""

    async def bare_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 18):
            writer.write(data)

    async def main() -> None:
        server = Server({ECHO: _echo, SINK: _sink, GIVE: _give})
        bound = bind("127.0.0.1", 0)
        await server.start(bound)
        bare = await asyncio.start_server(bare_echo, "127.0.0.1", 0)
        sink = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=bare_sink, args=(sink,), daemon=True).start()
        pipe.send([bound.getsockname()[1], bare.sockets[0].getsockname()[1], sink.getsockname()[1]])
        await asyncio.to_thread(pipe.recv)
        await server.stop()

    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    asyncio.run(main())
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(12)


def bare_sink(listener: socket.socket) -> None:
    """Takes LARGE_COUNT large bodies, answers one byte."""
    while True:
        peer, _ = listener.accept()
        buffer = bytearray(LARGE)
        left = LARGE * LARGE_COUNT
        while left and (count := peer.recv_into(buffer)):
            left -= count
        peer.sendall(b"x")
        peer.close()


async def latency_us(call: Callable[[], Awaitable[object]], count: int) -> tuple[float, float]:
    """(p50, p99) of `call` in microseconds, after a warm-up."""
    for _ in range(count // 10):
        await call()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        times.append((time.perf_counter() - began) * 1e6)
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


async def measure(port: int, bare_port: int) -> dict[str, float]:
    """All figures that need a loop."""
    pool = ConnectionPool()
    connection = await pool.get(f"127.0.0.1:{port}")
    results: dict[str, float] = {}

    async def request(serialization: Serialization) -> None:
        await connection.request(Command(ECHO, {"topic": "t"}, b"x" * SMALL, serialization=serialization), 10)

    reader, writer = await asyncio.open_connection("127.0.0.1", bare_port)

    async def bare() -> None:
        writer.write(b"x" * SMALL)
        await reader.readexactly(SMALL)

    results["bare echo p50 us"], results["bare echo p99 us"] = await latency_us(bare, SINGLES)
    for serialization in Serialization:
        name = f"request, {serialization.name.lower()} header"
        p50, p99 = await latency_us(lambda each=serialization: request(each), SINGLES)  # type: ignore[misc]
        results[f"{name} p50 us"], results[f"{name} p99 us"] = p50, p99
    writer.close()

    async def pipeline(count: int) -> None:
        for _ in range(count):
            await request(Serialization.MSGPACK)

    began = time.perf_counter()
    await asyncio.gather(*(pipeline(PIPELINED // DEPTH) for _ in range(DEPTH)))
    results[f"requests/s, {DEPTH} under way"] = PIPELINED / (time.perf_counter() - began)

    for name, code, body in (("sent", SINK, bytes(LARGE)), ("received", GIVE, b"")):

        async def large(count: int, code: int = code, body: bytes = body) -> None:
            for _ in range(count):
                await connection.request(Command(code, body=body, serialization=Serialization.MSGPACK), 10)

        began = time.perf_counter()
        await asyncio.gather(*(large(LARGE_COUNT // 4) for _ in range(4)))
        results[f"1 MiB bodies {name} MB/s"] = LARGE * LARGE_COUNT / 1e6 / (time.perf_counter() - began)
    await pool.close()
    return results


def bare_socket_mb_per_s(port: int) -> float:
    """Blocking sends of 1 MiB into a blocking reader."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        body = bytes(LARGE)
        began = time.perf_counter()
        for _ in range(LARGE_COUNT):
            peer.sendall(body)
        peer.recv(1)
        return LARGE * LARGE_COUNT / 1e6 / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    own, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, options.profile))
    server.start()
    port, bare_port, sink_port = own.recv()
    loop = EventLoopThread("client")
    results = {"bare socket MB/s": bare_socket_mb_per_s(sink_port), **loop.run(measure(port, bare_port))}
    own.send("end")
    loop.stop()
    server.join()
    if options.json:
        print(json.dumps(results))
        return
    table = Table("measured", "value")
    for name, value in results.items():
        table.add_row(name, f"{value:,.0f}")
    console().print(table)


if __name__ == "__main__":
    main()
