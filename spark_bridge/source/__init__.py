"""Topics as a data source of Spark 4.2: `spark.read | readStream | write | writeStream.format("raymq")`.

Spark 4 has sources and sinks in Python, and 4.2 lets them limit a batch and end with `availableNow`. What is here says
in Spark's words what the bridge's core does for every Spark: plans, ranges, staged writes and their one commit.

What is in it, in the order to read it:
    options: what a user may say, checked; offsets: how far a stream is, as Spark keeps it in its checkpoint;
    columns: what a schema asks for, and what a row must have to be a message;
    reading, writing: Spark's readers and writers; data_source: all of them under one name; register: for a session.

A message's way: `option(...)` -> `options` -> `reading` plans ranges on the driver -> `tasks.FetchRanges` in Spark's
Python workers; a row's: `columns` -> `tasks.StageRows` -> `writing` commits on the driver.

Only `options`, `offsets` and `columns` can be imported with Spark 3.5, whose users get nothing of this.
"""
