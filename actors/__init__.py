"""What runs on the cluster: decisions (core), the protocol (wire), and thin Ray shells around them."""
