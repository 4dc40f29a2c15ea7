"""The push consumer: messages are brought to a listener.

What is in it, in the order to read it:
    push_consumer, consumer_settings: what a program calls; listener: what its function answers.
    pop_engine, leases: with mode="pop", which messages are lent to it; the rest is the same in both modes.
    engine, assignment: which queues are its, and what is done to come to them; start_positions: from where.
    fetching, fetch_window, queue_backoff, examining: what is fetched of them, and what becomes of those in trouble.
    delivery, delivery_order, listener_threads, pace, rate, outage: which call of the listener begins when;
    process_queue: what is not done.
    committing, send_back: what succeeded and what failed is told; failures: why it failed, for the message and the log;
    trace: to who watches, too.
"""
