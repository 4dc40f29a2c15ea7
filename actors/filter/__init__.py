"""Which messages a consumer wants: tags and SQL92, the same for clients and brokers.

What is in it, in the order to read it:
    subscription: what a consumer wants of a topic; wanted: what a fetch asks of a queue.
    sql_filter: SQL92 over properties; kept_texts: what was made of texts that come again.
"""
