"""Make copies of stored messages for services that move messages to another queue.

What is in it, in the order to read it:
    republisher: make and append copies; quarantine messages that cannot be copied.
    record_copy: re-encode a record.
    property_scan: find copies again, at startup and on replicas.
"""
