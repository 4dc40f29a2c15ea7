"""The push consumer: messages are brought to a listener."""
