"""Consumer groups: their members, settings, offsets, locks and progress.

What is in it, in the order to read it:
    clients: who is connected, and to which group it belongs; askers: who asked for a reply; settings: of groups.
    offsets: commits and resets; locks: queues in order; consumption: how far groups are; deletion: of groups.
"""
