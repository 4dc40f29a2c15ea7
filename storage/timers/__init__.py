"""The timer log: which messages wait for a time of their own, in the order of their times.

What is in it, in the order to read it:
    entry: what waits, as 32 bytes; timer_log: the whole; journal, run, state: the files that it is made of.
    over: what need not be known any more; oldest_waiting: from where on the log is still needed.
"""
