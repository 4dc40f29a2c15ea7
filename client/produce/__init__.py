"""Send messages: single sends, batches, lingering and the outbox.

What is in it, in the order to read it:
    producer: the public class.
    send_options: the options of each send.
    send_pipeline: the parts through which a producer's messages are sent.
    shared_producer: send through a producer actor.
    message_encoder, message_batch: encode messages as records, and hold their futures.
    batcher: gather messages so that they are sent together.
    body_limits: how long a message body may be.
    ordered_queue_sender: send the batches of one queue one after the other.
    sent_results: turn the brokers' responses into results.
    transaction: messages that are visible when they are committed; transaction_responder: answers brokers' checks.
    traced_sends: make a span of each send.
    outbox, outbox_file: keep and send later the messages that no broker accepted.
"""
