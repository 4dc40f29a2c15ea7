"""The pull consumer: seek, poll, commit."""
