"""Encode and decode messages as records, one at a time or in batches.

The package accesses no files. It reads the clock only to set the born timestamp of a new message that has none.

What is in it, in the order to read it:
    record, property_names, message_id: the codec of one record, the names of properties, and message ids.
    record_template: encode many single records of one topic.
    message_limits: the limits on the sizes and fields of messages.
    record_batch, byte_rows, checksums: check, locate and stamp many contiguous records at once.
    native_kernels: the interface of the compiled versions of these steps.
    columnar_encoder, record_table, header_columns: convert Arrow tables to records and back.
    property_columns, uniform_properties: the properties of many records as Arrow columns.
    index_inputs, indexed_properties, java_hash: compute the tags codes and key hashes that queues and index need.
    unique_key_generator, producer_sequence: the properties that identify messages and producers' batches.
    failure_reason: the property with the reason why consuming a message failed.
    rewrite_destination: copy records to other topics and queues.
    body_compression, crc, body_stripping: decompress bodies, compute checksums, and remove bodies from records.
"""
