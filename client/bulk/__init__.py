"""What moves whole tables: Spark's door into the client.

What is in it, in the order to read it:
    range_reader: fixed ranges as Arrow tables; staging: records that become visible together.
"""
