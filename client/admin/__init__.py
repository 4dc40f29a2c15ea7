"""Administration: topics, groups, messages, dead letters, the cluster.

What is in it, in the order to read it:
    admin: what a program calls; topics, groups, messages, reading, dead_letters, cluster, brokers,
    elections: what it does.
    broker_changes: the part of it that has brokers restarted, added, moved and taken away;
    operation: what goes on while the program does something else.
"""
