"""Run a broker without Ray.

What is in it, in the order to read it:
    service: a broker in every role. opened_broker: its open store, and the broker's decisions around it.
    leader_service: the socket and the periodic tasks of one event loop, while the broker leads.
    periodic_tasks: repeats these tasks.
    name_server_registration: registers the broker with the name servers.
    context: what handlers work on. handlers: handle the requests, one file per family of commands.
    core: the decisions, without sockets and Ray, in the folders appending, reading, delay, pop, groups, redelivery,
    writes, transactions and copies.
    membership_sync: exchanges with the other brokers which brokers and coordinators exist.
    staged_commits: appends staged writes when their coordinator has decided, and asks it if need be.
    transaction_checker: asks the producers of open transactions how they ended.
    broker_metrics: its figures as metrics; topic_metrics: those of topics and groups.
    acks: decides when appends are answered. group_commit: one flush for all appends that wait for the disk.
    replica: the roles of a broker of a group with several copies. replication: their decisions.

The path of a message:
    handlers.append_handlers reads the request and enters `BrokerContext.append`, which admits or refuses it;
    `BrokerCore.append` checks topic and queue, holds back delayed messages, and appends the rest to the store;
    `on_arrival` notifies core.reading.long_poll, which wakes the fetches, pulls and pops parked on the queue;
    the sender gets its answer when acks reports that the message is as durable as the configuration promises;
    handlers.fetch, pull or pop answers with the records as they lie in the log.
"""
