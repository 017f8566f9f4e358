"""Certificates of authorities that an issuer's keys are fetched with."""

import ssl


def ca_problem(pem: str) -> str:
    """Say why a text cannot be the certificates of authorities; "" if it can."""
    try:
        context = ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError):
        return "these are no certificates as PEM"
    return "" if context.cert_store_stats()["x509_ca"] else "none of these certificates is a CA's"
