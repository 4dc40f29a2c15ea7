"""Read and write whole tables; Spark uses this package.

What is in it, in the order to read it:
    range_reader: reads of fixed ranges of offsets as Arrow tables.
    staged_writer, staged_write: writes whose records become visible together.
    coordinator_lookup: finds the coordinator, the one broker that keeps a series of writes or the plans of a stream.
    batch_plans: the plans of a stream's batches: which messages each batch reads.
"""
