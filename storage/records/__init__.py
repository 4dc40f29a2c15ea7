"""One record and many: the bytes of messages. Knows no file and no clock."""
