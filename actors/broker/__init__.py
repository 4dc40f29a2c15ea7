"""A broker without Ray.

What is in it, in the order to read it:
    service: the store, the socket and the duties of one event loop; registration: what name servers are told.
    context: what handlers work on; handlers: what is done with each request, one file per family of commands.
    core: the decisions, which know neither sockets nor Ray; its rooms are appending, reading, delay, pop, groups,
    redelivery and copies.
    group_commit: one flush for all who wait for the disk.

The way of a message:
    handlers.append or append_one reads the request and enters `BrokerContext.append`, which admits or refuses it;
    `BrokerCore.append` checks topic and queue, holds back what is delayed, and appends the rest to the store;
    `on_arrival` tells core.reading.long_poll, which wakes the fetches, pulls and pops that wait for the queue;
    the sender is answered when group_commit says that the message is as safe as it was promised;
    handlers.fetch, pull or pop answers with the records as they lie in the log.
"""
