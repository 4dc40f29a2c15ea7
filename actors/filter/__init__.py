"""Message filters of consumers, by tags and SQL92, the same for clients and brokers.

What is in it, in the order to read it:
    tag_expression: a consumer's subscription to a topic, and the filter of it.
    fetch_spec: the start and the filter of a fetch from one queue.
    sql_filter: SQL92 over properties.
    lru_cache: a cache of parsed expressions.
"""
