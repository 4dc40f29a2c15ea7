"""RayMQ's main job from end to end on real data: the program behind `raymq demo`.

It stands above all rooms: the only code that uses both a cluster and Spark. The `raymq` command finds it by the entry
point `raymq.commands`.
"""
