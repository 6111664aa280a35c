"""Certificates for TLS with a broker: an authority, a broker and a client of it, and another authority."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

TRUST_PASSWORD, KEY_PASSWORD = "hunter2-of-the-trust-store", "hunter2-of-the-key"
Signed = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]


def write_stores(room: Path) -> None:
    """Write what a broker and its clients need into a directory.

    ``authority.pem`` and ``trust.p12`` have the authority, ``other.p12`` another one, ``broker.pem`` the
    broker's key and certificate, ``client.p12`` those of a client. (Java 17 reads no encrypted key as PEM.)
    """
    room.mkdir()
    authority, other = _sign("authority", None), _sign("another authority", None)
    room.joinpath("authority.pem").write_bytes(_encode(authority[1]))
    for name, trusted in (("trust", authority), ("other", other)):
        store = pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(trusted[1], b"authority")],
            serialization.BestAvailableEncryption(TRUST_PASSWORD.encode()),
        )
        room.joinpath(f"{name}.p12").write_bytes(store)
    key, certificate = _sign("broker", authority)
    room.joinpath("broker.pem").write_bytes(_encode_key(key) + _encode(certificate))
    key, certificate = _sign("client", authority)
    sealed = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
    store = pkcs12.serialize_key_and_certificates(b"client", key, certificate, [authority[1]], sealed)
    room.joinpath("client.p12").write_bytes(store)


def _sign(name: str, authority: Signed | None) -> Signed:
    """A key and its certificate, signed by an authority; without one it is an authority itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer = subject if authority is None else authority[1].subject
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
    )
    if authority is not None:
        host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        made = made.add_extension(x509.SubjectAlternativeName([host]), critical=False)
    return key, made.sign(key if authority is None else authority[0], hashes.SHA256())


def _encode(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
