"""Membership of groups: heartbeats, subscriptions, shares of queues, locks.

What is in it, in the order to read it:
    subscription: what is wanted; membership: who belongs to the group; rebalance: who has which queue.
    queue_locks, lock_table: queues in order.
"""
