"""The proxy's configuration: `proxy.json` of the operator, read again when it changes."""

import json
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from diptych.core.budget import UNLIMITED, Budget, Prices
from diptych.core.errors import ConfigError
from diptych.manifest.access import read_platform_access
from diptych.manifest.documents import SourceLocation
from diptych.manifest.model_api import ModelApiManifest, ModelApiSpec
from diptych.manifest.model_file import with_key_files
from diptych.manifest.model_references import ModelReferences
from diptych.manifest.references import ReferenceTargets
from diptych.manifest.rules import fields_of
from diptych.manifest.secret_sources import CurrentFile, SecretSources
from diptych.manifest.settings import ModelConfig, TimeoutConfig
from diptych.manifest.validation import raise_problems, validate_object
from diptych.models.connection import with_proxies
from diptych.ports import ValueProvider

FILE = "proxy.json"


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """A ModelAPI as its proxy needs it.

    `upstream` is its endpoint, `access` the text of an access file. `redis` reads the URL of the
    budget's store.
    """

    name: str  # <namespace>/<name>
    spec: ModelApiSpec
    upstream: ModelConfig
    access: str
    redis: ValueProvider | None = None

    def allows(self, model: str) -> bool:
        """Whether Agents may use this model."""
        globs = self.spec.models
        return not globs or any(fnmatchcase(model, glob) for glob in globs)

    def prices_of(self, model: str) -> Prices | None:
        prices = self.spec.prices.get(model)
        return Prices(prices.input, prices.output) if prices else None

    @property
    def per_day(self) -> Budget:
        day = self.spec.budget.per_day if self.spec.budget else None
        return Budget(tokens=day.tokens, cost=day.cost) if day else UNLIMITED


def read_config(text: str, path: Path) -> ProxyConfig:
    """Read the text of the file at `path`. Raises `ConfigError`, with a line for each mistake.

    {"name", "namespace", "spec": {of the ModelAPI, with `{"file": …}` for its secrets},
     "access": {as an Agent's access file}}
    """
    try:
        content = json.loads(text)
        name, namespace, access = content["name"], content["namespace"], content["access"]
        access_text = json.dumps(access)
        read_platform_access(access_text)
        written = {
            "apiVersion": "diptych.dev/v1alpha1",
            "kind": "ModelAPI",
            "metadata": {"name": name, "namespace": namespace},
            "spec": with_key_files(content["spec"]),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not the configuration of a ModelAPI's proxy: {error}") from None
    location = SourceLocation(str(path))
    spec = validate_object(ModelApiManifest, written, location).spec
    targets = ReferenceTargets(SecretSources({}))
    references = ModelReferences(namespace, location, targets, path.parent)
    endpoint = references.api_endpoint(name, spec, is_required=True)
    redis = references.redis(("spec", "redis"), spec.redis)[0] if spec.redis else None
    raise_problems(references.problems)
    upstream = replace(endpoint, timeouts=TimeoutConfig(**fields_of(spec.timeouts)))
    return ProxyConfig(f"{namespace}/{name}", spec, with_proxies(upstream), access_text, redis)


def config_file(folder: Path) -> CurrentFile[ProxyConfig]:
    """Return the configuration in a folder, as its file is now. Raises `ConfigError`."""
    path = folder / FILE
    if not path.exists():
        raise ConfigError(f"{path}: is missing; the operator writes it")
    return CurrentFile(path, lambda text: read_config(text, path))
