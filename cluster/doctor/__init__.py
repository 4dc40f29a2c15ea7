"""`raymq doctor`: what is wrong, where, and what to do about it.

What is in it, in the order to read it:
    finding: what a check says.
    machine, stores, brokers, processes, nodes: checks, plain functions of what was read.
    probes: what is read of a machine; asking: what is asked of a cluster, by its sockets and through Ray.
    diagnosis: all of it together.
"""
