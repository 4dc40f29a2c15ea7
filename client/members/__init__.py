"""Membership of groups: heartbeats, subscriptions, shares of queues, locks."""
