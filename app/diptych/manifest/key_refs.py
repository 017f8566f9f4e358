"""References of a manifest to keys of Secrets and ConfigMaps."""

from diptych.manifest.fields import ObjectKey, ObjectName
from diptych.manifest.strict_model import StrictModel


class KeyRef(StrictModel):
    """One key of a Secret or ConfigMap in the agent's namespace."""

    name: ObjectName
    """The name of the Secret or ConfigMap."""
    key: ObjectKey
    """One of its keys."""


class SecretSource(StrictModel):
    """A secret, given by reference: a manifest never holds its value."""

    secret_key_ref: KeyRef
    """A key of a Secret. In a cluster it is a mounted file, read again when it changes. On a laptop
    it comes from the environment (`MODELS_API_KEY` for models/api-key) or from `--secrets`."""


class TextSource(StrictModel):
    """A text that another object holds: exactly one of the two."""

    exactly_one_of = ("configMapKeyRef", "secretKeyRef")

    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""
    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""
