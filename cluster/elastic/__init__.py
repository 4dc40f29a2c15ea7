"""Changing the brokers of a running cluster while producers and consumers go on.

What is in it, in the order to read it:
    seen: what is to be known of broker groups before anything is done to one, made of what brokers say of themselves.
    steps: what may be done next, in words, too; patience: how long it is waited for what does not move.
    rolling: a rolling restart; replacing: a replica more, one less, or one in another's place; growing: a group more;
    draining: a group that is emptied, and goes. Each decides which step is next, by what is seen, and does nothing.
    ground: looks at the cluster and does single steps, by Ray, sockets and files.
    carrying_out: looks, asks what is next, does it, and looks again. changes: what `Admin` calls where a connection
    reaches Ray.

A change is a loop that keeps nothing: it looks at the cluster, does the one step that is next, and looks again. So it
may be ended at any moment, by a kill too, and begun again. What is to be is written down before it is done, in
`raymq.cluster.layout`.
"""
