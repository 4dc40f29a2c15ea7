"""The receipt of a message that a consumer popped."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.wire.headers.pop_headers import ReceiptHandle


@dataclass(slots=True)
class Receipt:
    """The receipt of a popped message, which is pickled with the message.

    `handle` is replaced when the lease of the delivery is renewed.

    Attributes:
        is_begun: the broker has been informed that a listener call with it begins.
        is_suspect: a consumer ended without an answer to it before: twice, or before its last try.
        is_lost: its lease has expired, or the broker has delivered it to another member.
    """

    handle: ReceiptHandle
    is_suspect: bool = False
    is_lost: bool = False
    is_begun: bool = False
