"""Administration: topics, groups, messages, dead letters, the cluster.

What is in it, in the order to read it:
    admin: what a program calls; topics, groups, messages, dead_letters, cluster: what it does.
"""
