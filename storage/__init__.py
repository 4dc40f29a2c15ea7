"""One broker's store: files, records, recovery. Knows no Ray, no network, no asyncio."""
