"""Messages that wait: the fixed levels, times of their own, and calling them back.

What is in it, in the order to read it:
    schedule, due_times: the fixed levels.
    timers, timer_wheel, timer_records: times of messages' own; recall, recalled: calling them back.
    delivered: what a start has to know of copies; rescue: what waits outlives its log file.
"""
