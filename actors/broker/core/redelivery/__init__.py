"""What follows a failure: the ladder of waits, and the dead letters.

What is in it, in the order to read it:
    retry: what follows from a failure; redelivery: does it; dead_letters: gives them to their group once more.
"""
