"""Compiles the extension modules; the metadata is in pyproject.toml."""

from __future__ import annotations

from Cython.Build import cythonize
from setuptools import Extension, setup

HEADERS = ["raymq_native/crc32.h", "raymq_native/octets.h", "raymq_native/layout.pxi", "raymq_native/messages.pxd"]

setup(
    ext_modules=cythonize(
        [
            Extension(f"raymq_native.{name}", [f"raymq_native/{name}.pyx"], depends=HEADERS)
            for name in ("scanning", "indexing", "encoding", "decoding", "messages")
        ],
        # Positions are checked where they are taken in, not at each access.
        compiler_directives={"language_level": 3, "boundscheck": False, "wraparound": False, "initializedcheck": False},
    )
)
