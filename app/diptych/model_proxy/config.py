"""The proxy's configuration: `proxy.json` of the operator, read again when it changes."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from diptych.core.budget import UNLIMITED, Budget, Prices
from diptych.core.errors import ConfigError
from diptych.manifest.access import read_platform_access
from diptych.manifest.documents import SourceLocation
from diptych.manifest.fields import SecretSource
from diptych.manifest.model_api import ModelApiManifest, ModelApiSpec
from diptych.manifest.model_file import mounted_file, with_key_files
from diptych.manifest.providers import PROVIDERS, Provider
from diptych.manifest.secret_sources import constant_value, value_from_file
from diptych.manifest.sessions import RedisSpec
from diptych.manifest.settings import ModelConfig, TimeoutConfig
from diptych.manifest.validation import validate_object
from diptych.models.connection import with_proxies
from diptych.net.redaction import remembered
from diptych.ports import ValueProvider

FILE = "proxy.json"
_OTHER_PROVIDER = Provider("", "")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """A ModelAPI as its proxy needs it.

    `upstream` is its endpoint; `models` are globs of the names that Agents may use, all if empty.
    `access` is the text of an access file. `redis` reads the URL of the budget's store.
    """

    name: str  # <namespace>/<name>
    upstream: ModelConfig
    access: str
    models: tuple[str, ...] = ()
    default: str | None = None
    prices: Mapping[str, Prices] = field(default_factory=dict)
    per_day: Budget = UNLIMITED
    redis: ValueProvider | None = None

    def allows(self, model: str) -> bool:
        """Whether Agents may use this model."""
        return not self.models or any(fnmatchcase(model, glob) for glob in self.models)

    def prices_of(self, model: str) -> Prices | None:
        return self.prices.get(model)


def read_config(text: str, source: str) -> ProxyConfig:
    """Read the file's text. Raises `ConfigError`, with a line for each mistake.

    {"name", "namespace", "spec": {of the ModelAPI, with `{"file": …}` for its secrets},
     "access": {as an Agent's access file}}
    """
    try:
        content = json.loads(text)
        name, namespace, access = content["name"], content["namespace"], content["access"]
        access_text = json.dumps(access)
        read_platform_access(access_text)
        spec = _read_spec(content, source)
        upstream = with_proxies(_upstream(spec, source))
        redis = _redis(spec.redis) if spec.redis else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{source}: not the configuration of a ModelAPI's proxy: {error}"
        ) from None
    day = spec.budget.per_day if spec.budget else None
    return ProxyConfig(
        f"{namespace}/{name}",
        upstream,
        access_text,
        spec.models,
        spec.default,
        {model: Prices(each.input, each.output) for model, each in spec.prices.items()},
        Budget(tokens=day.tokens, cost=day.cost) if day else UNLIMITED,
        redis,
    )


class ConfigFile:
    """The configuration, as the file has it now. Raises `ConfigError` if it cannot be used at the
    start; a later mistake leaves the former one in force, and `problem` says so.
    """

    def __init__(self, folder: Path) -> None:
        self._read = value_from_file(folder / FILE)
        self._source = str(folder / FILE)
        self.problem = ""
        self._text = self._read()
        if self._text is None:
            raise ConfigError(f"{self._source}: is missing; the operator writes it")
        self._config = read_config(self._text, self._source)

    def current(self) -> ProxyConfig:
        text = self._read()
        if text is None or text == self._text:
            return self._config
        self._text = text
        try:
            self._config, self.problem = read_config(text, self._source), ""
        except ConfigError as error:
            self.problem = f"{error}; the former configuration stays in force"
            _logger.error("%s", self.problem)
        return self._config


def _read_spec(content: Mapping[str, Any], source: str) -> ModelApiSpec:
    metadata = {"name": content["name"], "namespace": content["namespace"]}
    manifest = {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "ModelAPI",
        "metadata": metadata,
        "spec": with_key_files(content["spec"]),
    }
    return validate_object(ModelApiManifest, manifest, SourceLocation(source)).spec


def _upstream(spec: ModelApiSpec, source: str) -> ModelConfig:
    provider = PROVIDERS.get(spec.provider or "", _OTHER_PROVIDER)
    endpoint = provider.complete(spec.endpoint or provider.endpoint).rstrip("/")
    if not endpoint:
        raise ConfigError(f"{source}: spec.endpoint: is required for a proxy")
    key = _secret(spec.api_key) if spec.api_key else None
    headers = {
        header.name: _secret(header.value_from)
        if header.value_from
        else constant_value(header.value or "")
        for header in spec.headers
    }
    if key and provider.key_header:
        headers[provider.key_header], key = key, None
    timeouts = TimeoutConfig(
        spec.timeouts.connect, spec.timeouts.first_byte, spec.timeouts.idle, spec.timeouts.total
    )
    return ModelConfig("", endpoint, key, timeouts=timeouts, headers=headers)


def _secret(source: SecretSource) -> ValueProvider:
    file = mounted_file(source.secret_key_ref)
    if file is None:
        raise ValueError("a secret must be {file: PATH} here")
    read = remembered(value_from_file(file))
    read()  # the endpoint may repeat it before it is used here
    return read


def _redis(spec: RedisSpec) -> ValueProvider:
    if spec.url_from:
        return _secret(spec.url_from)
    ref = spec.service_ref
    return constant_value(f"redis://{ref.name}.{ref.namespace}:{ref.port}" if ref else "")
