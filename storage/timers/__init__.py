"""The timer log: which messages wait for a time of their own, in the order of their times."""
