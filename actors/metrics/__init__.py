"""Publish the figures of a broker, or of a program's clients, as metrics.

    metric_family: what is published: families of series, without I/O
    series_limit: which topics and groups have series of their own
    page_server: a small HTTP server of read-only pages
    http_connections: how many connections that server has, and for how long
    prometheus_endpoint: a port for Prometheus, with RocketMQ's names
    metrics_publisher: collects the figures every few seconds, and publishes them

`raymq.actors.ray_exporter` publishes them among Ray's own. The figures of a broker are collected in
`raymq.actors.broker.broker_metrics`, those of clients in `raymq.client.client_metrics`.
"""
