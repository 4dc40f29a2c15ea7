"""Configuration files that a user copies and edits.

Some are settings that `cluster.start(config=...)` reads. Others deploy a
cluster: for `ray up` (ray-up-*.yaml, data-volume.sh), for Kubernetes (kuberay), and an image (docker).
"""
