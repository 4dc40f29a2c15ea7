"""Consumer groups: their members, settings, offsets, locks and progress.

What is in it, in the order to read it:
    client_registry: connected clients and their groups.
    pending_requesters: clients that requested a reply before their first heartbeat.
    group_settings: the settings of groups.
    group_offsets: commits and resets.
    rebalance_lock_manager: the queue locks of ordered consumption.
    consume_stats: the progress of groups.
    group_remover: delete groups.
"""
