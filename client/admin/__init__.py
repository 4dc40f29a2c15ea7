"""Administration: topics, groups, messages, dead letters, the cluster."""
