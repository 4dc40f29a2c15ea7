"""The register on etcd, for operators who trust no consensus of ours, or run an etcd already.

What is in it, in the order to read it:
    etcd_gateway: requests to etcd as JSON over HTTP (its own gateway), and what is known when one fails.
    etcd_register: `Register` on that: keys, transactions, and leases that are never prolonged.
"""
