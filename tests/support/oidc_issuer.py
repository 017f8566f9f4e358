"""An OpenID Connect issuer over real TLS, whose certificate an authority of its own has signed."""

import asyncio
import ipaddress
import json
import ssl
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DISCOVERY = "/.well-known/openid-configuration"


@dataclass
class Authority:
    """A certificate authority that nobody knows by itself."""

    name: str = "private"
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def __post_init__(self) -> None:
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        self.certificate = (
            self._builder(self.subject, self.key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def server_pem(self, name: x509.GeneralName) -> bytes:
        """Give a key, and a certificate of it that this authority has signed, for a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")])
        signed = (
            self._builder(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return private + signed.public_bytes(Encoding.PEM)

    def server(self) -> ssl.SSLContext:
        """Give the TLS of a server at 127.0.0.1 that this authority has signed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "server.pem")
            file.write_bytes(self.server_pem(x509.IPAddress(ipaddress.ip_address("127.0.0.1"))))
            context.load_cert_chain(file)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .issuer_name(self.subject)
            .subject_name(subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )


@dataclass
class OidcIssuer:
    """The issuer: where it is, and what signs its tokens, by key id."""

    url: str = ""
    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add_key(self, kid: str) -> None:
        self.keys[kid] = ec.generate_private_key(ec.SECP256R1())

    def token(self, kid: str, **claims: Any) -> str:
        """Sign a token of `ada`, for the audience `agents`."""
        content = {"iss": self.url, "aud": "agents", "sub": "ada", "exp": int(time.time()) + 600}
        return jwt.encode(content | claims, self.keys[kid], "ES256", headers={"kid": kid})

    def page(self, path: str) -> object:
        """Give what it answers at a path."""
        if path == DISCOVERY:
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        algorithm = jwt.get_algorithm_by_name("ES256")
        return {
            "keys": [
                {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid}
                for kid, key in self.keys.items()
            ]
        }


@asynccontextmanager
async def oidc_issuer(authority: Authority, issuer: OidcIssuer) -> AsyncIterator[OidcIssuer]:
    """Serve an issuer while the block lasts: at its address, if it has had one before."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        issuer.asked.append(path)
        body = json.dumps(issuer.page(path)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    port = int(issuer.url.rpartition(":")[2] or 0) if issuer.url else 0
    server = await asyncio.start_server(answer, "127.0.0.1", port, ssl=authority.server())
    issuer.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield issuer
    finally:
        server.close()


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
