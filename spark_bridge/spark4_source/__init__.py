"""Topics as a Spark 4.2 data source: `spark.read.format("raymq")`, also for streams and writes.

The format works with `spark.read`, `readStream`, `write` and `writeStream`. Spark 4 supports sources and sinks in
Python, and since 4.2 they can limit a batch and end with `availableNow`. This package adapts the bridge's core to
Spark's interfaces: plans, ranges, staged writes and their single commit.

What is in it, in the order to read it:
    source_options: the user's options, checked.
    checkpoint_offsets: the offsets of a stream, as Spark keeps them in its checkpoint.
    source_columns: the columns of a schema for reads, and of a row for writes.
    source_reader, source_writer: Spark's readers and writers.
    data_source: all of them under one name.
    source_registration: registers the source in a session.

The path of a message: `option(...)` -> `source_options` -> `source_reader` plans ranges on the driver ->
`fetch_ranges.FetchRanges` in Spark's Python workers. The path of a row: `source_columns` -> `row_staging.StageRows` ->
`source_writer` commits on the driver. Only `source_options`, `checkpoint_offsets` and `source_columns` can be imported
with Spark 3.5, where this source is not available.
"""
