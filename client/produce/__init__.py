"""Producing: single sends, batches, lingering, the outbox."""
