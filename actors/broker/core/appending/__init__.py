"""From an append to a record: what is accepted, refused, numbered, staged."""
