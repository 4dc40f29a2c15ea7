"""All errors that RayMQ raises, in one module.

The class tree is drawn in raymq.storage.errors and raymq.actors.errors.
"""

from __future__ import annotations

from raymq.actors import errors as _errors
from raymq.actors.errors import *  # noqa: F403

__all__ = list(_errors.__all__)
