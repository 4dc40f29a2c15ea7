"""What moves whole tables: Spark's door into the client.

What is in it, in the order to read it:
    staging: records that become visible together.
"""
