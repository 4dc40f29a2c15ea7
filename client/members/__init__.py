"""Membership of groups: heartbeats, subscriptions, assignment of queues, locks.

What is in it, in the order to read it:
    tag_filter: subscriptions; membership: the members of the group; assignment_strategies: the queues of each member.
    queue_locks, lock_table: locks of queues for ordered consumption.
"""
