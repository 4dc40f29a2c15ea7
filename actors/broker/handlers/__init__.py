"""Answer the requests of a broker, one file per family.

The `handlers` function of each file returns what the broker's server gets.
"""
