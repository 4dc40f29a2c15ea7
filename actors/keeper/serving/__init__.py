"""Serve keepers: files, threads and sockets around the decisions of `actors.keeper`.

What is in it, in the order to read it:
    decision_thread: one thread per keeper, because a save waits for the disk.
    local_keeper: a keeper with its file, called with message bodies.
    handlers: the request handlers of a local keeper.
    service: a keeper with its own port, without Ray; the actor in `keeper_actor` wraps it.
    keeper_channel: the connection to one keeper.
    quorum_transport: the connections of a `KeeperRegister` to all keepers.
    keeper_discovery: find the set of keepers from the addresses of some.
    register_location: where the register is, on keepers or on an etcd.

The path of a request:
    1. quorum_transport sends it to all keepers at once, over one channel each.
    2. A handler reads it on the event loop and passes it to the keeper's thread, which decides, saves and encodes.
    3. The event loop sends the answer. quorum_transport returns once its caller has enough answers.
"""
