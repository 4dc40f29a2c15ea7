"""Replication's decisions: one stream from a master to its replicas, what of it is confirmed, and who is master next.

Nothing here knows a socket, a file but the epochs', or Ray: the shells around it do what these classes say.

What is in it, in the order to read it:
    positions: how far a broker is in the stream. epoch_map: which part was made in which epoch; epoch_file: on disk, as
    RocketMQ has it; kept_epochs: both, of an open broker. state_stream: the numbered frames of all state beside
    the log.
    reconciling: the three answers to a replica that connects.
    in_sync: who has to have a message before it is confirmed; acknowledging: when it may be acknowledged.
    claims: a broker's start in the register; election: who becomes master.
    frames: the connection's frames; frame_bodies: what is in them. feeding: the master's end of a connection;
    following: the replica's.

The way of a message:
    acknowledging refuses it, or the master appends it: log bytes, and state frames with the log's end at that moment;
    feeding ships both in that order, with CRCs, the master's epoch, and what is confirmed so far;
    following says what each frame asks for; the replica writes it and acknowledges its position;
    in_sync makes the smallest position of all members the confirmed one, and consumers see up to there;
    acknowledging looks once more, at the lease too, and the sender gets its answer.
"""
