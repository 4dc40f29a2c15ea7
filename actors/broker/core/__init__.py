"""A broker's decisions without I/O: plain classes with an injected clock. Nothing here knows Ray or a socket.

What is in it, in the order to read it:
    broker, broker_settings: the whole; topics, system_topics: which topics there are.
    appending, reading: messages in and out; groups, pop: who consumes them; delay, redelivery, copies: what waits,
    and what comes again.
    statistics, runtime_figures, loop_stops, duty_troubles: what an operator is told.
"""
