"""The push consumer, which calls a listener with messages.

What is in it, in the order to read it:
    push_consumer, consumer_settings, consumer_end: the public class, its settings, and the wait for its end.
    listener: call the listener and read its results; traced_listener: make spans of the calls.
    push_pop_engine, message_leases, lease_settler: with mode="pop", which messages are leased to the consumer, and what
    their brokers are told.
    push_consumer_engine, rebalance: which queues the consumer owns, and how it takes them over and releases
    them.
    start_offsets: where a group starts in a queue without a committed offset.
    queue_fetcher: what is fetched, and how to go on in a queue that cannot be read at the next offset.
    consume_message_service, delivery_order: which listener call begins when, and with which messages.
    listener_runs: the calls that one thread makes one after the other; call_results: finish messages, or
    send them back to their broker.
    call_limits: rate limit and outages of calls.
    process_queue: which messages of a queue are not finished, and how many may be fetched ahead.
    offset_committer: commit offsets.
    status_responder: answer an administrator's question what the consumer is doing.
    failures: why calls failed, for the message and for the log.
"""
