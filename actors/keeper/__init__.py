"""Replicate the small register of broker group masters, and grant leases to the masters.

A keeper is one replica of the register. The keepers decide by majority, as in CASPaxos.

What is in it, in the order to read it:
    group_state: the register's value, one per broker group.
    keeper_set: the set of keepers, and what a majority of it is.
    keeper_messages: requests to keepers and their answers, as values.
    keeper_codec: the same as message bodies.
    errors: the errors of a call on the register.
    acceptor: the decisions of one keeper.
    master_lease: how long a master may acknowledge, on the keeper's side and on the master's side.
    keeper_record: the state that a keeper persists, and the interface of its file.
    keeper_file: that file, fsynced and protected by a checksum.
    register: the interface that the keepers and etcd implement.
    proposal: one attempt to decide a value.
    keeper_register: the register made of keepers, over any transport.
    etcd: the register on etcd.
    serving: the files, threads and sockets of keepers.

The steps of a change:
    1. The caller reads a value from the register, and proposes another one in its place.
    2. keeper_register sends `Prepare` to all keepers. A majority promises, and reports the value that it has accepted.
    3. If that value is still the one that the caller read, the new value goes to all keepers as `Accept`. Else the call
       ends with RegisterConflict.
    4. Each keeper saves its answer before it sends it. When a majority has accepted, the change is made.
"""
