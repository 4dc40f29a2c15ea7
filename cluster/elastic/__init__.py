"""Change the brokers of a running cluster while producers and consumers continue.

What is in it, in the order to read it:
    observed_groups: the observed state of broker groups, from what the brokers report.
    change_steps: the possible steps of a change, with their descriptions.
    stall_timeout: how long a change waits without progress.
    rolling_restart: plans a rolling restart.
    replica_planner: plans to add, remove or move a replica.
    scale_out_planner: plans to add a group.
    drain_planner: plans to drain and remove a group. Each planner decides on the next step from the observed state,
        without executing it.
    cluster_client: observes the cluster and executes single steps, through Ray, sockets and files.
    reconcile_loop: observes, plans and executes until nothing is left to do.
    change_executor: the implementation of `Admin`'s changes if a connection reaches Ray.

A change is a loop without a state of its own: it observes the cluster, executes the next step, and observes again. So
it may be ended at any moment, also by a kill, and started again. The intended state is recorded before it is executed,
in `raymq.cluster.cluster_layout`.
"""
