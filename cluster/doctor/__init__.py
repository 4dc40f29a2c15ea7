"""The checks of `raymq doctor`: what is wrong, where, and how to fix it.

What is in it, in the order to read it:
    check_result: the result of a check.
    host_checks, store_checks, broker_checks, process_checks, node_checks: the checks; all but node_checks are plain
        functions of data that was read before.
    host_probes: reads the data of a machine.
    broker_runtime: requests figures from the brokers of a cluster by its sockets.
    diagnosis: runs all of it.
"""
