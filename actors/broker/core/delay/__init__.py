"""Delayed messages: the fixed delay levels, messages with a delivery time, and recalls.

What is in it, in the order to read it:
    schedule_message_service, due_times: the fixed delay levels.
    timer_message_store, timer_wheel, timer_records: messages with a delivery time of their own.
    timer_indexer, replica_timers: derive the timer log from the commit log, on masters and on replicas.
    recall_processor, recent_recalls: withdraw such messages.
    delayed_messages: list what waits, in pages.
    topic_incarnation: for which topic of a name a waiting message is meant.
    delivery_recovery: find the copies that were delivered before a crash, or by a replica's master.
    delayed_message_relocator: store waiting messages again before their log file is deleted.
"""
