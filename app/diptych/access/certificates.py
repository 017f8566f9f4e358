"""Checks the certificates of authorities that an issuer may be trusted by."""

import ssl


def ca_problem(pem: str) -> str:
    """Return the problem of a text that should be certificates of authorities, or ""."""
    try:
        context = ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError):
        return "these are no certificates as PEM"
    return "" if context.cert_store_stats()["x509_ca"] else "none of these certificates is a CA's"
