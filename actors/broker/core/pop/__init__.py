"""Pop: messages lent to whichever member asks, and taken back."""
