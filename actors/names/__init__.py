"""A name server without Ray: its table of routes, its configuration, the handlers of its commands.

What is in it, in the order to read it:
    service: the name server; table: what it knows; key_values: its configuration.
    route_handlers, configuration_handlers: its commands; long_registrations: those that are read one after another.
"""
