"""The coordinator: elects another replica of a broker group after its master has failed.

It keeps no state of its own.

What is in it, in the order to read it:
    failover_monitor: decide when a group has to be created, to lose its master, or to elect one, without I/O.
    replica_client: requests to replicas, over sockets.
    manual_failover: an election on an operator's request.
    service: the loop of one coordinator over all groups, without Ray; the actor in `coordinator_actor` wraps it.

The steps of an election:
    1. The master has not reported for a while that it serves. As soon as its lease has ended, the register's state
       changes to an election (no master, the next epoch).
    2. Every replica that can be reached is fenced, and reports its log's end from disk.
    3. `broker.replication.election` chooses the winner. The register gets the winner as master, which reads it there.

Every step changes the register by compare-and-set. If two coordinators run at once, the change of one of them is
refused.
"""
