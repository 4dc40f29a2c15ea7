"""RayMQ's main features from end to end on real data: the program behind `raymq demo`.

This package is the only code that uses both a cluster and Spark, and no other package imports it. The `raymq` command
finds it by the entry point `raymq.commands`.
"""
