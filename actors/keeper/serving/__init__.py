"""What carries keepers: files, threads and sockets around the decisions of `actors.keeper`.

What is in it, in the order to read it:
    decision_thread: one thread for one keeper, because saving waits for the disk.
    served_keeper: a keeper with its file, as it is asked by bodies; handlers: the same by the wire.
    service: a keeper with a port of its own, without Ray; the actor in `keeper_actor` wraps it.
    keeper_channel: the connection to one keeper; socket_door: the door of a `KeeperRegister` to all of them;
    finding: which keepers there are, for who knows where some listen; location: where a register is, also on an etcd.

The way of a question:
    the door writes it to all keepers at once, each over its channel;
    a handler reads it on the event loop, and hands it to the keeper's thread, which decides, saves and encodes;
    the answer goes back by the event loop; the door returns once its asker has heard enough.
"""
