"""Messages that wait: the fixed levels, times of their own, and calling them back; meant_for: their topic.

What is in it, in the order to read it:
    schedule, due_times: the fixed levels.
    timers, timer_wheel, timer_records: times of messages' own; recall, recalled: calling them back.
    meant_for: which topic of a name a waiting message is for.
    delivered: what a start has to know of copies; rescue: what waits outlives its log file.
"""
