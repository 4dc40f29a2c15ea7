"""What a server allows its clients: one frozen value, so that no peer takes more than its share."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.wire.frame import MAX_FRAME_BYTES, MAX_JSON_REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server. A connection at a limit is not read from until it is below; none is answered with less.

    Attributes:
        frame_bytes, header_bytes, json_header_bytes: a longer frame, or one with a longer header, closes the
            connection.
        answer_bytes: a longer answer becomes an error.
        connections: one more is closed at once, and so is one that takes one of the last descriptors of the process.
        handshakes: of more connections that have not made TLS's handshake yet the oldest is closed.
        handshake_seconds: so long TLS's handshake may take.
        connection_request_bytes: of requests of one connection that are not answered yet; each counts with its body
            and 1 KiB.
        total_request_bytes: the same of all connections, and of frames above 16 KiB that are still arriving what has
            arrived.
        write_high_bytes, write_low_bytes: a peer that leaves more than the first of its answers unread is not read
            from until it is below the second.
        idle_seconds: a connection that says nothing for this long is closed (serverChannelMaxIdleTimeSeconds of
            RocketMQ).
        frame_seconds: a connection that has begun a frame has this long to finish it.
        slice_seconds: a connection is served for this long before the others have their turn.
        drain_seconds: how long a stop waits for requests that are under way.
    """

    frame_bytes: int = MAX_FRAME_BYTES
    answer_bytes: int = MAX_FRAME_BYTES
    header_bytes: int = 1024 * 1024
    json_header_bytes: int = MAX_JSON_REQUEST_BYTES
    connections: int = 10_000
    handshakes: int = 256
    handshake_seconds: float = 10.0
    connection_request_bytes: int = 64 * 1024 * 1024
    total_request_bytes: int = 512 * 1024 * 1024
    write_high_bytes: int = 1024 * 1024
    write_low_bytes: int = 256 * 1024
    idle_seconds: float = 120.0
    frame_seconds: float = 60.0
    slice_seconds: float = 0.0005
    drain_seconds: float = 5.0
