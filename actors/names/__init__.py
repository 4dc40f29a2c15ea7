"""A name server without Ray: its table of routes, its configuration, the handlers of its commands."""
