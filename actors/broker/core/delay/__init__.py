"""Messages that wait: the fixed levels, times of their own, and calling them back."""
