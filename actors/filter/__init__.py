"""Which messages a consumer wants: tags and SQL92, the same for clients and brokers."""
