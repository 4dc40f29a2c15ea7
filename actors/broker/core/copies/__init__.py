"""Copies of stored messages, made for whoever moves them on.

What is in it, in the order to read it:
    copying: a copy is made, or its message is put aside; rewriting: a record made anew; marked_records: finding
    copies again.
"""
