"""Read and write whole tables; Spark uses this package.

What is in it, in the order to read it:
    range_reader: reads of fixed ranges of offsets as Arrow tables; the bounds of queues.
    staged_writer, staged_write: writes whose records become visible together.
    coordinator_lookup: finds the coordinator, the one broker that keeps a series of writes or the plans of a stream.
"""
