"""The limits that a server sets for its clients, as one frozen value.

They prevent a single peer from using more than its share of the server.
"""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.wire.frame import MAX_FRAME_BYTES, MAX_JSON_REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server.

    A connection that reaches a limit is not read from until it is below the limit again; no request is answered in part
    because of a limit.

    Attributes:
        frame_bytes, header_bytes, json_header_bytes: a longer frame, or one with a longer header, closes the
            connection.
        answer_bytes: a longer answer becomes an error.
        connections: a connection beyond this number is closed at once, and so is one that gets one of the last file
            descriptors of the process.
        handshakes: if more connections than this have not completed their TLS handshake, the oldest of them is closed.
        handshake_seconds: the longest time of a TLS handshake.
        connection_request_bytes: bytes of the unanswered requests of one connection; each counts with its body and 1
            KiB.
        total_request_bytes: the same for all connections together, plus the received bytes of frames above 16 KiB that
            have arrived in part.
        write_high_bytes, write_low_bytes: a peer that leaves more than the first number of answer bytes unread is not
            read from until fewer than the second are unread.
        idle_seconds: a connection that sends nothing for this long is closed (serverChannelMaxIdleTimeSeconds of
            RocketMQ).
        frame_seconds: a connection has this long from the first byte of a frame to its last.
        slice_seconds: a connection is served for this long before other connections are served.
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
