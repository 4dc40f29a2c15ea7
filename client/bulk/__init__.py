"""What moves whole tables: Spark's door into the client."""
