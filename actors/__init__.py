"""The cluster's processes: brokers, name servers, keepers, their protocol, and their Ray actors.

What is in it, in the order to read it:
    protocol, errors, naming: the values, the errors and the names that clients and servers share.
    wire: frames, connections, the server, and every request as a value.
    broker and names: a broker and a name server without Ray, independent of each other.
    keeper, coordinator: the register of masters, and failover.
    metrics: what a process publishes as metrics, and the port for Prometheus.
    filter: message filters by tags and SQL expressions.
    sending: the modules of all senders.
    route_cache, name_server_health: the routes from the name servers, and which of these servers hang.
    queue_allocation, recall_handle, request_limits: what clients and brokers compute in the same way.
    event_loop, supervisor, backoff: an event loop on a thread, its long-lived tasks, and the pauses after failures.
    ports, server_settings, gc_tuning, java: the ports, settings, garbage collector and Java of a process.

With Ray:
    broker_actor, name_server_actor, keeper_actor, coordinator_actor, scheduler_actor, producer_actor: the actors.
    hosted_service, poll_schedule: how an actor starts its service, and when the scheduler polls a broker.
    actor_calls, actor_options, address_watch: how actors are called, created, and found after a move.
    ray_exporter: metrics among those of Ray.
    spare_process: a worker process that Ray has started ahead.

The path of a message:
    1. sending.sender picks one of the queues in the route_cache and sends a request of wire.commands.append_commands.
    2. wire.server_connection reads its frame and calls the handler of its code, from broker.handlers.
    3. The handler calls broker.core, which decides and appends to the store.
    4. broker.core.reading wakes the fetches that wait for the queue, and their answers carry the record.
    5. wire.commands.fetch_commands reads the answer in the client.
"""

from __future__ import annotations

import logging

from zlib_ng import zlib_ng

from raymq.storage.records import crc, native_kernels

crc.use(zlib_ng.crc32)

try:
    import raymq_native
except ImportError:  # it is optional: NumPy computes the same
    pass
else:
    try:
        native_kernels.use(raymq_native)
    except ValueError as error:
        logging.getLogger(__name__).warning("%s; NumPy is used instead", error)
