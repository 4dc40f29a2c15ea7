"""A broker of a group with more than one copy: one process that is replica or master, as the register says.

What is in it, in the order to read it:
    process: what such a process is at a moment. service: its roles and the change between them; claiming: its
    claim; listening: its sockets; replica_file: what it remembers of itself; thread_calls: what an office may leave
    behind; following_duties: what a replica does every few seconds.
    stream: a replica's part of the stream, on its disk. follower: its connection to the master.
    office: the time as master: lease, in-sync set, what is confirmed. settled: who waits for that. gate: which commands
    are refused, and which are answered only when what they changed is confirmed. place, replicated_context: what
    its service gets of all that.
    shipping: the master's end of the replicas' connections. frame_stream: frames on a socket, both ends.
    told: what it answers to SEAL, REPLICA_STATUS and RocketMQ's questions; refusing: what a replica answers to all
    else; registering: how name servers know it.
"""
