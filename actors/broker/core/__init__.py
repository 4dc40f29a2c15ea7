"""A broker's decisions without I/O: plain classes with an injected clock. Nothing here knows Ray or a socket.

What is in it, in the order to read it:
    broker, broker_settings: the whole; topics, system_topics: which topics there are;
    known_homes: who keeps what is kept on one broker only.
    appending, reading: messages in and out; writes: staged ones as transactions; groups, pop: who consumes them;
    delay, redelivery, copies: what waits, and what comes again.
    backups: what is held for one that is under way.
    statistics, runtime_figures, loop_stops, duty_troubles, remaining: what an operator is told.
"""
