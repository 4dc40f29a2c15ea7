"""Make the decisions of replication: the stream, its confirmed part, and elections.

One stream goes from a master to its replicas. The classes use neither sockets nor Ray, and no files except that of the
epochs: the callers around them carry out what the classes decide.

What is in it, in the order to read it:
    stream_position: how far a broker is in the stream.
    epoch_map: which part of the stream was made in which epoch. epoch_file: the epochs on disk, in RocketMQ's format.
    reconciliation: the three answers to a replica that connects.
    in_sync_set: which replicas must have a message before it is confirmed. ack_rule: when it may be acknowledged.
    replica_claims: a broker's start in the register. election: which replica becomes master. replica_role: which role
    a broker has, and when it steps down.
    replication_frames: the connection's frames. frame_bodies: the encoding of their bodies.
    replication_sender: the master's side of a connection. replication_receiver: the replica's side.

The path of a message:
    ack_rule refuses it, or the master appends it: log bytes, and events of tables with the log's end at that moment;
    replication_sender ships both in that order, with CRCs, the master's epoch, and the confirmed position so far;
    replication_receiver decides what each frame requires; the replica writes it and acknowledges its position;
    in_sync_set confirms the smallest position of all members, the high watermark, and consumers see messages up to it;
    ack_rule checks once more, also the lease, and the sender gets its answer.
"""
