"""Certificates for servers on loopback."""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificates:
    """A certificate authority and a server certificate for one address, valid for some hours.

    `ca`, `cert` and `key` are the paths of their PEM files.
    """

    def __init__(self, folder: Path, address: str) -> None:
        """Make them in `folder`."""
        self.folder = folder
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = self._signed("authority", authority_key, authority_key, "authority", None)
        server_key = ec.generate_private_key(ec.SECP256R1())
        server = self._signed("server", server_key, authority_key, "authority", address)
        self.ca = self._write("ca.pem", authority.public_bytes(serialization.Encoding.PEM))
        self.cert = self._write("cert.pem", server.public_bytes(serialization.Encoding.PEM))
        self.key = self._write(
            "key.pem",
            server_key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    def _write(self, name: str, content: bytes) -> str:
        path = self.folder / name
        path.write_bytes(content)
        return str(path)

    @staticmethod
    def _signed(
        subject: str,
        key: ec.EllipticCurvePrivateKey,
        signer: ec.EllipticCurvePrivateKey,
        issuer: str,
        address: str | None,
    ) -> x509.Certificate:
        def name(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=12))
            .add_extension(x509.BasicConstraints(ca=address is None, path_length=None), True)
        )
        if address is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(signer, hashes.SHA256())
