"""What a message may be: the one table, from which every other bound on bytes is derived.

A cluster's own limit is its brokers' `max_message_bytes`. Producers learn it with the routes of their topics and keep
it before anything is sent; where nobody has said one it is taken for `DEFAULT_MESSAGE_BYTES`. Who reads has to take
what any setting of before has let in, so that the readers' bounds follow from `MOST_MESSAGE_BYTES`.
"""

from __future__ import annotations

from typing import Final

#: `max_message_bytes` where nothing else is configured: RocketMQ's maxMessageSize, of its brokers and of its producers.
DEFAULT_MESSAGE_BYTES: Final = 4 << 20
#: What `max_message_bytes` may be set to. Lengths of records and frames, which are RocketMQ's 32 bits, and a commit log
#: file would allow 2 GiB. But a body is one value at both ends, and what a body may be multiplies: this is what a
#: producer's buffer holds, what one connection may have under way in a broker, and what a few compressed bytes, from
#: whomever, may become in a consumer.
MOST_MESSAGE_BYTES: Final = 64 << 20
#: What a record has besides its body, at most: header, topic, properties, and the mark that ends a log file behind it.
MOST_BESIDE_BODY: Final = 33 << 10
#: The remedy of a body that is longer than the brokers allow.
TOO_LONG: Final = "send less, or raise max_message_bytes in the brokers' configuration"
#: The remedy of one that is longer than any broker could.
ELSEWHERE: Final = "store it elsewhere, and send where it is"

#: Of the properties of a record, whose length has 16 bits, one of them a sign in Java.
MAX_PROPERTIES_BYTES: Final = 32_767

# What is allowed in a message, as the errors say it, of messages one by one and of a table's rows.
BODY: Final = "at least 1 byte, at most the brokers' max_message_bytes (4 MiB unless it is configured otherwise)"
TAG: Final = "one tag: not blank, without ||"
KEY: Final = "each key at least 1 character, without a blank"
TEXT: Final = r"text without \x00, \x01 and \x02"
PROPERTY_NAME: Final = "names that are not empty and not RocketMQ's or RayMQ's own"
PROPERTY_VALUE: Final = "values that are not empty"
PROPERTIES: Final = f"at most {MAX_PROPERTIES_BYTES} bytes in all, unique key, keys and tags included"
DELAY_LEVEL: Final = "0 or more"
DELIVER_AT: Final = "not together with `delay_level`"
#: How far ahead a message may be due, and how errors say it.
MOST_DAYS_AHEAD: Final = 40
DUE: Final = f"seconds since 1970, at most {MOST_DAYS_AHEAD} days ahead"
