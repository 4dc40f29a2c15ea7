"""Requests as values, one file per family, with functions that build and read them.

The client builds requests and reads answers; the server reads requests and builds answers. There are no handlers here.
"""
