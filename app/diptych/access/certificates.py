"""Checks the CA certificates configured for an issuer."""

import ssl


def ca_problem(pem: str) -> str:
    """Return the problem of a PEM text that should contain CA certificates; "" if it is valid."""
    try:
        context = ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError):
        return "these are not PEM certificates"
    return "" if context.cert_store_stats()["x509_ca"] else "none of these certificates is a CA's"
