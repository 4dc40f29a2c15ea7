"""One record and many: the bytes of messages. Knows no file; a clock only where a message that is made has no time yet.

What is in it, in the order to read it:
    record, property_names, message_id: the codec of one record, its layout as a table; template: many of one topic;
    limits.
    batch, byte_rows, checksums: many contiguous records checked, parted and stamped at once; compiled: the same in C.
    columns, table, head_columns: records out of Arrow tables and back; property_columns, alike_properties: their
    properties.
    index_inputs, indexed_properties, java_hash: what queues and the index of keys need of records.
    unique_keys, producer_sequence: the properties by which producers tell messages and batches apart.
    failure_reason: why a try failed, as a property.
    rewrite_destination: copies for other queues; compression, crc: bodies; without_bodies: records that have none.
"""
