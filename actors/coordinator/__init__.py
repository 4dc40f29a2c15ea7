"""The coordinator: has another replica of a broker group elected when its master is gone. It keeps nothing itself.

What is in it, in the order to read it:
    watching: when a group needs to be founded, to have its master taken away, or to be given one. Decisions alone.
    asking: the questions to replicas, over sockets. by_hand: an election that an operator asks for.
    service: the turns of one coordinator over all groups, without Ray; the actor in `coordinator_actor` wraps it.

The way of an election:
    the master has not said for a while that it serves: the register says "electing", as soon as its lease has ended;
    every replica that is reached is sealed, and says what it has on its disk;
    `broker.replication.election` chooses; the register gets the winner, which reads there that it is master now.

Everything is a change of the register by compare-and-set: of two coordinators at once one has its change refused.
"""
