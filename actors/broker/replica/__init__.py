"""Give a broker of a group with replicas its role.

The keepers' register decides the role.

What is in it, in the order to read it:
    replica_manager: carries out what `replication.replica_role` decides. replica_status: the broker's state, and its
    answers to SEAL, REPLICA_STATUS and RocketMQ's status requests.
    replica_claimer: its claim. broker_sockets: its sockets. replica_file: its persistent metadata.
    follower_tasks: periodic tasks of a replica.
    replica_stream: a replica's part of the stream, on disk. replica_connection: its connection to the master.
    leadership: the broker as master: lease, in-sync set, high watermark. pending_acks: requests that wait for it.
    leader_guard: refuses commands, or delays answers until their changes are confirmed; a replica refuses all.
    replication_server: the master's side of the replicas' connections. frame_stream: frames on a socket, both sides.
"""
