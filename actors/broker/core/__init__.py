"""The decisions of a broker, as plain classes with an injected clock.

No module here performs network I/O or imports Ray or sockets.

What is in it, in the order to read it:
    broker, broker_settings: the broker's core and its settings.
    topic_manager, system_topics: the topics of a broker.
    coordinator_directory: which broker coordinates which stream or series of writes.
    appending, reading: how messages are appended and read.
    writes: staged writes of many rows. transactions: messages that their producers commit or roll back.
    groups, pop: consumer groups and pop consumption.
    delay, redelivery, copies: delayed messages, retries and dead letters, and the copies that both of them make.
    backup_lease: the lease of the backup in progress.
    statistics, broker_runtime_info, event_loop_lag, periodic_retry, drain_status: figures and log lines for operators.
"""
