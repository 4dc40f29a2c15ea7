"""What runs on the cluster: decisions (core), the protocol (wire), and thin Ray shells around them."""

from __future__ import annotations

import logging

from zlib_ng import zlib_ng

from raymq.storage.records import compiled, crc

crc.use(zlib_ng.crc32)

try:
    import raymq_native
except ImportError:  # it is optional: NumPy does the same
    pass
else:
    try:
        compiled.use(raymq_native)
    except ValueError as error:
        logging.getLogger(__name__).warning("%s; NumPy does its work", error)
