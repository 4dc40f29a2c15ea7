"""The simple consumer: messages are lent for a time."""
