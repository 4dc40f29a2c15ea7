"""What a bare socket moves between two processes over TCP: nothing is checked, nothing answered but the last byte."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from multiprocessing.connection import Connection as Pipe

from tests.bench.memory import PIECE_BYTES, TouchedMemory

TOTAL_BYTES = 256 << 20
#: Of touched memory, for what is kept: twice as much as is needed, since not all of it is taken first.
KEPT_PIECES = 2 * TOTAL_BYTES // PIECE_BYTES
_WRITE_BYTES = 1 << 20
_MADV_POPULATE_WRITE = 23


def sent_bytes_per_second(memory: TouchedMemory, *, unpaced: bool = False, kept: bool = False) -> float:
    """How fast 1 MiB writes of as much memory are taken in by another process.

    Args:
        memory: gives `KEPT_PIECES` if need be.
        unpaced: with a congestion control that does not send by the clock (`raymq.actors.wire.tcp_pacing`).
        kept: it keeps what it reads, in the mapping of a new file whose pages another thread of it prepares, as a log
            does at the least; else it reads into one buffer again and again.
    """
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    reader = multiprocessing.get_context("spawn").Process(target=_read, args=(theirs, kept))
    reader.start()
    block = memoryview(os.urandom(_WRITE_BYTES) * (TOTAL_BYTES // _WRITE_BYTES))
    try:
        with socket.create_connection(("127.0.0.1", ours.recv())) as out:
            if unpaced:
                out.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
            memory.give(KEPT_PIECES)
            out.sendall(b"1")
            began = time.perf_counter()
            for at in range(0, TOTAL_BYTES, _WRITE_BYTES):
                out.sendall(block[at : at + _WRITE_BYTES])
            out.recv(1)
            return TOTAL_BYTES / (time.perf_counter() - began)
    finally:
        reader.join()


def _read(pipe: Pipe, kept: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, tempfile.TemporaryFile() as file:
        pipe.send(listening.getsockname()[1])
        connection, _ = listening.accept()
        target = memoryview(bytearray(_WRITE_BYTES))
        if kept:
            os.posix_fallocate(file.fileno(), 0, TOTAL_BYTES)
            mapping = mmap.mmap(file.fileno(), TOTAL_BYTES)
            target = memoryview(mapping)
        with connection:
            connection.recv(1)
            if kept:
                threading.Thread(target=_prepare, args=(mapping,), daemon=True).start()
            at = 0
            while at < TOTAL_BYTES:
                here = at if kept else 0
                at += connection.recv_into(target[here : here + min(_WRITE_BYTES, TOTAL_BYTES - at)])
            connection.sendall(b"1")


def _prepare(mapping: mmap.mmap) -> None:
    for at in range(0, TOTAL_BYTES, _WRITE_BYTES):
        mapping.madvise(_MADV_POPULATE_WRITE, at, _WRITE_BYTES)
