"""Find out whether the packages of the extra `console` are installed, without importing them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

#: The modules that the console imports, and the packages that have them.
_PACKAGES: Final = {"aiohttp": "aiohttp", "jinja2": "Jinja2", "markupsafe": "MarkupSafe"}


def missing_package() -> str | None:
    """Return the name of a package that is missing; None if the console can run."""
    return next((package for module, package in _PACKAGES.items() if find_spec(module) is None), None)
