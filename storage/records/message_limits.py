"""The limits of a message, from which every other limit on bytes is derived.

A cluster's own limit is its brokers' `max_message_bytes`. Producers receive it with the routes of their topics and
check it before they send. If no broker has reported a limit, it is `DEFAULT_MESSAGE_BYTES`. Readers must accept every
message that an earlier setting accepted, so their limits are derived from `MAX_MESSAGE_BYTES`.
"""

from __future__ import annotations

from typing import Final

#: The default of `max_message_bytes`: RocketMQ's maxMessageSize, of brokers and of producers.
DEFAULT_MESSAGE_BYTES: Final = 4 << 20
#: The highest value of `max_message_bytes`. RocketMQ's 32-bit lengths of records and frames, and a commit log file,
#: would allow 2 GiB. But a body is one value at both ends, and this limit is also the size of a producer's buffer, of
#: what one connection may have in progress in a broker, and of what a few compressed bytes from any sender may expand
#: to in a consumer.
MAX_MESSAGE_BYTES: Final = 64 << 20
#: The most bytes of a record besides its body: header, topic, properties, and the mark that ends a log file after it.
MAX_RECORD_OVERHEAD: Final = 33 << 10
#: The remedy in the error for a body that is longer than the brokers allow.
TOO_LONG: Final = "send less, or raise max_message_bytes in the brokers' configuration"
#: The remedy in the error for a body that is longer than any broker can allow.
ELSEWHERE: Final = "store it elsewhere, and send its location"

#: The limit of a record's properties: their length has 16 bits, one of which is a sign in Java.
MAX_PROPERTIES_BYTES: Final = 32_767
#: Bytes of properties that are left free for those of later copies, where RayMQ itself adds a property to a message.
COPIES_ROOM_BYTES: Final = 2_048

# The limits as errors state them, for single messages and for a table's rows.
BODY: Final = "at least 1 byte, at most the brokers' max_message_bytes (4 MiB unless it is configured otherwise)"
TAG: Final = "one tag: not blank, without ||"
KEY: Final = "each key at least 1 character, without a blank"
TEXT: Final = r"text without \x00, \x01 and \x02"
PROPERTY_NAME: Final = "names that are not empty and not RocketMQ's or RayMQ's own"
PROPERTY_VALUE: Final = "values that are not empty"
PROPERTIES: Final = f"at most {MAX_PROPERTIES_BYTES} bytes in all, unique key, keys and tags included"
DELAY_LEVEL: Final = "0 or more"
DELIVER_AT: Final = "not together with `delay_level`"
#: How far ahead a message may be due, and how errors state it.
MAX_DAYS_AHEAD: Final = 40
DUE: Final = f"seconds since 1970, at most {MAX_DAYS_AHEAD} days ahead"
