"""A v1alpha2 of the Agent that only tests have, and what converts between it and v1alpha1.

It renames one field: `spec.description` is `spec.summary`. The server is a conversion webhook as a
release with two versions would run it.
"""

import contextlib
import copy
import datetime as dt
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Object = dict[str, Any]

OLD, NEW = "diptych.dev/v1alpha1", "diptych.dev/v1alpha2"
RENAMED = {NEW: ("description", "summary"), OLD: ("summary", "description")}
"""For each version, the field of the other one, and what it is called here."""


def converted(content: Object, version: str) -> Object:
    """Give an Agent in another version; one that is of it already is unchanged."""
    if content["apiVersion"] == version:
        return content
    content = copy.deepcopy(content)
    content["apiVersion"] = version
    before, after = RENAMED[version]
    spec = content.get("spec") or {}
    if before in spec:
        spec[after] = spec.pop(before)
    return content


def review(asked: Object) -> Object:
    """Answer a ConversionReview."""
    request = asked["request"]
    objects = [converted(one, request["desiredAPIVersion"]) for one in request["objects"]]
    answer = {"uid": request["uid"], "convertedObjects": objects, "result": {"status": "Success"}}
    return {**{name: asked[name] for name in ("apiVersion", "kind")}, "response": answer}


@dataclass
class Converter:
    """A running webhook; `ca` is its certificate, PEM."""

    url: str
    ca: bytes
    is_away: bool = False
    asked: list[str] = field(default_factory=list)


@contextlib.contextmanager
def converter(folder: Path) -> Iterator[Converter]:
    """Serve conversions over TLS on loopback."""
    certificate, key = _certificate()
    (folder / "tls.pem").write_bytes(certificate + key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "tls.pem")
    found = Converter("", certificate)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.asked.append(asked["request"]["desiredAPIVersion"])
            body = json.dumps(review(asked)).encode()
            self.send_response(503 if found.is_away else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the test's output free of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    found.url = f"https://127.0.0.1:{server.server_port}/convert"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def versions_of(crd: Object, storage: str, *, serves_old: bool = True) -> list[Object]:
    """Give the CRD's versions once there are two; `storage` names the one that is stored."""
    (old,) = crd["spec"]["versions"]
    new = copy.deepcopy(old)
    new["name"] = "v1alpha2"
    spec = new["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["summary"] = spec.pop("description")
    old = {**old, "served": serves_old}
    return [{**each, "storage": each["name"] == storage} for each in (old, new)]


def _certificate() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "converter")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(pem), private
