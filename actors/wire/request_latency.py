"""Measure how long requests take, by request code and response code. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raymq.storage.histogram import Histogram

#: RocketMQ's buckets of `rocketmq_rpc_latency`, in milliseconds.
RPC_BOUNDS_MS: Final = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1_000.0, 2_000.0, 3_000.0)


class RequestLatency:
    """The durations of requests, from the arrival of their last bytes to their answers.

    Used on the server's event loop. A request that is parked, such as a pull, counts with its wait.
    """

    def __init__(self) -> None:
        self._by_codes: dict[tuple[int, int], Histogram] = {}

    def observe(self, code: int, response_code: int, seconds: float) -> None:
        """Count an answered request."""
        latency = self._by_codes.get((code, response_code))
        if latency is None:
            latency = self._by_codes[code, response_code] = Histogram(RPC_BOUNDS_MS)
        latency.observe(seconds * 1000.0)

    def by_codes(self) -> Mapping[tuple[int, int], Histogram]:
        """Return the latencies in milliseconds by request code and response code.

        Callers must not change them.
        """
        return self._by_codes
