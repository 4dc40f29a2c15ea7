"""A name server without Ray: its route table, its configuration and its request handlers.

What is in it, in the order to read it:
    service: the name server.
    route_table: the registered brokers and their topics.
    recently_left_brokers: brokers that left the routes a short time ago.
    kv_config: the key-value configuration.
    route_handlers, configuration_handlers: the request handlers.
    controller_handlers: requests of RocketMQ's tools to a controller.
    controller_facade: the answers to them, and manual elections.
"""
