"""RocketMQ's remoting protocol: frames, connections, the server, and one file per family of commands. Knows no Ray."""
