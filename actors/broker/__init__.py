"""A broker without Ray.

What is in it, in the order to read it:
    opening: the store and the decisions around it come to be; service: the socket and the duties of one event loop;
    duties: how these are repeated; making_ready: what a process does once before; registration: what name servers are
    told.
    context: what handlers work on; handlers: what is done with each request, one file per family of commands.
    core: the decisions, which know neither sockets nor Ray; its rooms are appending, reading, delay, pop, groups,
    redelivery, writes and copies.
    meetings: brokers come to know of each other, and of homes.
    staged_commits, write_follower: staged writes are appended when their home has decided.
    group_commit: one flush for all who wait for the disk.
    replica: a broker of a group with several copies, around all this; replication: its decisions.

The way of a message:
    handlers.append or append_one reads the request and enters `BrokerContext.append`, which admits or refuses it;
    `BrokerCore.append` checks topic and queue, holds back what is delayed, and appends the rest to the store;
    `on_arrival` tells core.reading.long_poll, which wakes the fetches, pulls and pops that wait for the queue;
    the sender is answered when group_commit says that the message is as safe as it was promised;
    handlers.fetch, pull or pop answers with the records as they lie in the log.
"""
