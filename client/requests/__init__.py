"""Asking brokers: fetches, fan-out, offsets."""
