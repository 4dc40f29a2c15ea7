"""Commented files that a user copies and edits: settings that `cluster.start(config=...)` reads, and what deploys a
cluster: for `ray up` (ray-up-*.yaml, data-volume.sh), for Kubernetes (kuberay), and an image (docker).
"""
