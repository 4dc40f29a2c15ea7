"""The log and what is derived from it: commit log, queues, index of keys, and the start that puts them right."""
