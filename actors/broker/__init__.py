"""A broker without Ray: its service, its duties, the handlers of its commands, and its decisions (core)."""
