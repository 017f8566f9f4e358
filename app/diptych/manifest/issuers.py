"""Makes the issuers that a manifest names ready for use: their keys and their trust."""

from diptych.access.certificates import ca_problem
from diptych.manifest.access import IssuerSpec
from diptych.manifest.access_settings import IssuerConfig
from diptych.manifest.references import References
from diptych.manifest.secret_sources import constant_value
from diptych.manifest.source_location import FieldPath


def issuer_config(references: References, n: int, issuer: IssuerSpec) -> IssuerConfig:
    """Make the configuration of `access.issuers[n]`.

    A pod takes what the API has accepted, and certificates may come to it later: there, what is
    wrong with them is said when the issuer is asked.
    """
    path: FieldPath = ("spec", "access", "issuers", n)
    ca = references.text_of_source((*path, "caFrom"), issuer.ca_from)
    if issuer.ca is not None:
        ca = constant_value(issuer.ca)
    text = None if ca is None or references.is_mounted else ca()
    if text is not None and (problem := ca_problem(text)):
        references.add_problem((*path, "ca" if issuer.ca else "caFrom"), problem)
    return IssuerConfig(
        issuer.url,
        issuer.audience,
        issuer.user_claim,
        issuer.groups_claim,
        tuple(issuer.jwks.keys) if issuer.jwks else None,
        ca=ca,
    )
