"""Certificates for tests: an authority, and a server and a client signed by it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from raymq.actors.protocol import Tls


def certificates(directory: Path) -> tuple[Tls, Tls]:
    """Create a CA, and return the settings of a signed server and client."""
    directory.mkdir(parents=True, exist_ok=True)

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test CA")
    for who in ("server", "client"):
        openssl("req", *key, "-keyout", f"{who}.key", "-out", f"{who}.csr", "-subj", f"/CN={who}")
        (directory / "san").write_text("subjectAltName=IP:127.0.0.1,IP:127.0.0.2")
        openssl(
            *("x509", "-req", "-in", f"{who}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{who}.pem", "-days", "2", "-extfile", "san"),
        )
    files = [Tls(*(str(directory / name) for name in ("ca.pem", f"{w}.pem", f"{w}.key"))) for w in ("server", "client")]
    return files[0], files[1]
