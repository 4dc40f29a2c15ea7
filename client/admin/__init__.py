"""Administration: topics, groups, messages, dead letters and the cluster.

What is in it, in the order to read it:
    admin: the class `Admin`, which programs call.
    topic_requests, group_requests, message_search, topic_reader, dead_letter_requests, transaction_requests,
    cluster_info, broker_removal, election_requests: the requests that `Admin` sends.
    inspection: the part of `Admin` that explains what happens.
    group_facts, group_diagnosis: why a group does not move: what is asked, and what follows from the answers.
    cluster_health: whether the cluster is alive and ready.
    topic_figures: rates and routes of topics.
    message_trace: what became of one message; delayed_requests: what waits for its time.
    broker_changes: the part of `Admin` that restarts, adds, drains, moves and removes brokers.
    operation: a change that runs in the background, with its state, its steps and its result.
"""
