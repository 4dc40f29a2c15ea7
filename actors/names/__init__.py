"""A name server without Ray: its table of routes, its configuration, the handlers of its commands.

What is in it, in the order to read it:
    service: the name server; table: what it knows; away: brokers that it knew lately; key_values: its configuration.
    route_handlers, configuration_handlers: its commands; long_registrations: those that are read one after another.
    controller_handlers: what RocketMQ's tools ask a controller; register_desk: the answers, and elections by hand.
"""
