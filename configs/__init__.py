"""Commented settings: files that `cluster.start(config=...)` reads and that a user copies and edits."""
