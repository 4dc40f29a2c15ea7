"""RocketMQ's remoting protocol: frames, commands, connections and the server.

The package imports neither Ray nor the code of brokers, name servers or clients.

What is in it, in the order to read it:
    frame, codes: one command as bytes, and the codes of requests and answers.
    headers: the fields of each request, under RocketMQ's names.
    commands: requests as values, one file per family: the client builds them, the server reads them, and answers.
    bare_frame: frames with the shortest header.
    json_body, java_properties: bodies in RocketMQ's formats.
    frame_reader, frame_writer: read and write the frames of a byte stream.
    loop_queue: calls that are deferred to later iterations of the event loop.
    connection_pool: the client's connections.
    request_latency: how long requests take.
    dead_peer_detector: detects connections whose peer does not answer any more.
    blocking_channel: a connection that one blocking thread uses.
    adaptive_spin: how long that thread polls before it sleeps.
    reconnecting_channel: a connection for requests that need an answer within a second.
    tcp_pacing: turns off TCP pacing where both ends are on one machine.
    address_resolution: the current addresses of servers that moved.
    protocol_version: which versions of RayMQ's own commands both sides speak.
    response_validation: checks of the values in an answer.
    error_codec: encodes errors into answers and decodes them.
    server, server_connection: the server and its connections.
    server_limits, request_memory_budget, residual_bytes: the server's limits, and unread bytes of broken connections.
    server_interface: what a connection needs of its server, and what an inline handler has to provide.
    server_requests: requests that a server sends to its clients.
    sync_callback_future, stepwise_handlers: futures with immediate callbacks, and long handlers that run in steps.
    in_memory_transport: commands that arrive by a method call instead of a socket.
    tls: TLS contexts.
    tls_listener: a listener that limits TLS handshakes.

The path of one message:
    a function of commands makes a Command from its arguments;
    connection_pool writes its frame, numbered by `opaque`, and keeps a future for the answer;
    server_connection cuts the frame out of the stream and calls the handler of its code;
    the handler's answer is sent back with the same number; error_codec turns an error into a code and a remark;
    connection_pool sets the future's result to the answer, and another function of commands reads it.
"""
