"""Keepers: the small replicated register that says who is master of a broker group, and gives masters their leases.

What is in it, in the order to read it:
    group_state: the value, one per broker group; keeper_set: which keepers there are, and what a majority is.
    messages: what keepers are asked and answer, as values; message_json: as bodies. errors: what a call ends with.
    acceptor: one keeper's decisions; leases: for how long a master may go on, both ends.
    keeper_record: all that a keeper knows, and the seam to its file; keeper_file: that file, fsynced and checked.
    register: the seam behind which keepers, or etcd, are; proposal: one attempt to decide; keeper_register: the
    register made of keepers, over whatever reaches them.

The way of a change:
    the caller reads a value from the register, and asks for another one in its place;
    keeper_register sends `Prepare` to all keepers; a majority promises, and says what it has accepted;
    if that is still what the caller had read, the new value goes to all as `Accept`; else it is a conflict;
    each keeper saves what it answers before it does; when a majority has accepted, the change is made.
"""
