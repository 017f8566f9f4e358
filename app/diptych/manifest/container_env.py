"""The variables of a manifest's `container`, as the agent's process sees them."""

from diptych.manifest.container import ContainerSpec, Variable, VariablesFrom
from diptych.manifest.references import References
from diptych.manifest.secret_sources import Kind, constant_value
from diptych.manifest.source_location import FieldPath
from diptych.manifest.variables import MOCK, PUBLIC_URL
from diptych.net.redaction import SECRETS
from diptych.ports import ValueProvider

PUBLIC_VARIABLES = frozenset({MOCK, PUBLIC_URL})
"""What is told to whoever asks, even if it comes from a Secret."""

_ENV: FieldPath = ("spec", "container", "env")
_ENV_FROM: FieldPath = ("spec", "container", "envFrom")


def container_env(container: ContainerSpec, references: References) -> dict[str, ValueProvider]:
    """Give the container's variables; `env` counts before `envFrom`, as in Kubernetes."""
    env: dict[str, ValueProvider] = {}
    for index, source in enumerate(container.env_from):
        env |= _variables(source, (*_ENV_FROM, index), references)
    for index, variable in enumerate(container.env):
        env[variable.name] = _variable(variable, (*_ENV, index), references)
    return env


def variable_path(container: ContainerSpec, name: str) -> FieldPath:
    """Give the path of a variable in `env`, or of `envFrom` if it comes from there."""
    names = [variable.name for variable in container.env]
    return (*_ENV, names.index(name)) if name in names else _ENV_FROM


def _variables(
    source: VariablesFrom, path: FieldPath, references: References
) -> dict[str, ValueProvider]:
    kind: Kind = "Secret" if source.secret_ref else "ConfigMap"
    ref = source.secret_ref or source.config_map_ref
    if ref is None or references.is_mounted:
        return {}
    keys = references.all_keys(path, kind, ref.name, optional=ref.optional)
    return {source.prefix + key: secret for key, secret in keys.items()}


def _variable(variable: Variable, path: FieldPath, references: References) -> ValueProvider:
    source = variable.value_from
    if references.is_mounted or (source and (source.field_ref or source.resource_field_ref)):
        value = _process_variable(variable.name, path, references)
        if source and source.secret_key_ref and variable.name not in PUBLIC_VARIABLES:
            SECRETS.remember(value() or "")
        return value
    path = (*path, "valueFrom")
    if source and (ref := source.secret_key_ref):
        read = references.text_of_key if variable.name in PUBLIC_VARIABLES else references.key
        return read(path, "Secret", ref, is_required=not ref.optional)
    if source and (ref := source.config_map_key_ref):
        return references.key(path, "ConfigMap", ref, is_required=not ref.optional)
    return constant_value(variable.value or "")


def _process_variable(name: str, path: FieldPath, references: References) -> ValueProvider:
    """Read a variable of this process, which Kubernetes has set (on a laptop, the user)."""
    environ = references.targets.environ
    if not references.is_mounted and name not in environ:
        references.add_problem(path, f"has a value only in a cluster; set {name} to have one here")
    return lambda: environ.get(name)
