"""What runs on the cluster: brokers, name servers, the protocol between them and their clients, thin Ray shells.

What is in it, in the order to read it:
    protocol, errors, naming: the values, the failures and the names that both ends share.
    wire: frames, connections, the server, and every request as a value.
    broker and names: a broker and a name server without Ray; they do not know each other.
    sending: what every sender needs; routing: the routes that name servers tell, and name_server_silence: if
    they tell none; filter: what a consumer wants.
    broker_actor, name_server_actor, scheduler_actor, producer_actor: the actors; handles and actor_options find and
    make them; spare_process: in which a killed broker is back sooner. Only these import Ray.

The way of a message:
    sending.sender chooses one of the queues that routing knows, and writes a request of wire.commands.append;
    wire.server_connection reads its frame and calls the handler of its code, from broker.handlers;
    the handler asks broker.core, which decides and appends to the store;
    broker.core.reading.long_poll wakes the fetches that wait for the queue, and their answers carry the record;
    wire.commands.fetch reads it on the other end.
"""

from __future__ import annotations

import logging

from zlib_ng import zlib_ng

from raymq.storage.records import compiled, crc

crc.use(zlib_ng.crc32)

try:
    import raymq_native
except ImportError:  # it is optional: NumPy does the same
    pass
else:
    try:
        compiled.use(raymq_native)
    except ValueError as error:
        logging.getLogger(__name__).warning("%s; NumPy does its work", error)
