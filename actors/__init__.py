"""What runs on the cluster: decisions (core), the protocol (wire), and thin Ray shells around them."""

from __future__ import annotations

from zlib_ng import zlib_ng

from raymq.storage import crc

crc.use(zlib_ng.crc32)
