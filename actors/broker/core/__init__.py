"""A broker's decisions without I/O: plain classes with an injected clock. Nothing here knows Ray or a socket."""
