"""What moves whole tables: Spark's door into the client.

What is in it, in the order to read it:
    wish, range_reader: fixed ranges as Arrow tables; staging, committing: records that become visible together;
    home: the broker that keeps what is kept on one only; streams: which messages each batch of a stream reads.
"""
