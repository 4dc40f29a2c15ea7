"""RocketMQ's remoting protocol and nothing else. Knows no Ray, and neither brokers nor name servers nor senders.

What is in it, in the order to read it:
    frame, codes: one command as bytes; headers: the fields of each request, in RocketMQ's names.
    commands: requests as values, one file per family: built by who asks, read by who answers, and their answers.
    fixed_frame: the shortest of them; json_body, json_steps, java_properties: bodies of RocketMQ's forms.
    reader, writing: frames of a stream; connection: the asking end, until silence says that it is dead; channel: that
    of a thread which waits itself, for so long as busy_wait says; prompt_channel: for answers that are needed within a
    second; same_host: both ends on one machine; moved: where servers are that have another address
    now; own_protocol: which versions of our own commands both sides speak; told: nothing
    of an answer is believed unchecked.
    server, server_connection: the answering end, with its limits (limits, room, unread), and what it needs of its
    server (host); prompt_future: an answer that is written in the turn in which it is made; stepwise: long handlers in
    steps; own_requests: what a server asks its clients; wakeups: turns for what an arrival wakes.
    memory_door: commands that come without a socket; tls: encryption; tls_listener: its handshakes; faults:
    errors as answers and back.

The way of a message:
    a function of commands makes a Command of its values;
    connection writes its frame, numbered by `opaque`, and keeps a future for the answer;
    server's reader cuts the frame out of the stream and calls the handler of its code;
    the handler's answer goes back with the same number, an error as the code and remark that faults gives it;
    connection hands it to the future, and another function of commands reads it.
"""
