"""The register on etcd, for operators who trust etcd's consensus or already run etcd.

What is in it, in the order to read it:
    etcd_gateway: requests to etcd as JSON over HTTP (etcd's own gateway), and whether a failed one may be carried out.
    etcd_register: `Register` on the gateway: keys, transactions, and leases that are never extended.
"""
