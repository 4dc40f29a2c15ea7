"""The headers of RocketMQ's commands, a file per family; `actors/wire/` serves them."""
