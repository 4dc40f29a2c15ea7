"""The timer log: messages that wait for a delivery time, sorted by due time.

What is in it, in the order to read it:
    timer_entry: one entry of 40 bytes; timer_log: the whole log; timer_journal, timer_run, timer_state: its files.
    expiry_watermark: which entries may be dropped; oldest_pending_timer: from which offset on the commit log is still
        needed.
"""
