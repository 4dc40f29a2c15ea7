"""Pop: messages lent to whichever member asks, and taken back.

What is in it, in the order to read it:
    pop, request: a pop and its answer; queue: one queue as one group pops it; alarms: when to look at which; reading:
    what a pop delivers.
    buried: which of the dead are dead letters already.
"""
