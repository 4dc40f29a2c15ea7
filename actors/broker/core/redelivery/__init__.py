"""What follows a failure: the ladder of waits, and the dead letters."""
