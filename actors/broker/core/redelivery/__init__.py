"""Redelivery after a failure: retries with growing delays, and dead letters.

What is in it, in the order to read it:
    retry: decide what follows a failure.
    redelivery: store the retry or the dead letter.
    dead_letter_redrive: redrive dead letters to their group, or delete them.
"""
