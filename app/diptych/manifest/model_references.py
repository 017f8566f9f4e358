"""Follows the references of models: to keys, providers and ModelAPIs."""

from dataclasses import replace

from diptych.manifest.budget import PricesSpec
from diptych.manifest.documents import FieldPath
from diptych.manifest.fields import KeyRef, url_problem
from diptych.manifest.model import Address, ApiRef, FallbackSpec, ModelSpec, Parameters
from diptych.manifest.model_api import ModelApiSpec
from diptych.manifest.providers import API_KEY, PROVIDERS, Provider
from diptych.manifest.references import UNRESOLVED, References, with_path
from diptych.manifest.rules import fields_of, overlaid
from diptych.manifest.settings import ModelConfig, TimeoutConfig
from diptych.ports import ValueProvider

_OTHER_PROVIDER = Provider("", "")


class ModelReferences(References):
    """Makes the configuration of models; on a laptop a ModelAPI's endpoint is asked directly."""

    def model(self, model: ModelSpec, *, is_required: bool) -> ModelConfig:
        """Make the configuration of an Agent's model; it is not asked unless it `is_required`."""
        path: FieldPath = ("spec", "model")
        api, of_api = self._api(model.api_ref)
        main = self._endpoint(path, model, model.parameters, is_required=is_required)
        if api and not model.fallbacks:
            parameters = overlaid(api.parameters, model.parameters)
            fallbacks = of_api.fallbacks(
                ("spec",), api.fallbacks, parameters, is_required=is_required
            )
            self.problems += of_api.problems
        else:
            fallbacks = self.fallbacks(
                path, model.fallbacks, model.parameters, is_required=is_required
            )
        timeouts = overlaid(api.timeouts, model.timeouts) if api else model.timeouts
        config = TimeoutConfig(**fields_of(timeouts))
        return replace(
            main,
            timeouts=config,
            fallbacks=tuple(replace(each, timeouts=config) for each in fallbacks),
            inputs=model.inputs,
        )

    def prices(self, model: ModelSpec) -> PricesSpec | None:
        """Return a model's prices: the Agent's, else those of its ModelAPI."""
        api, _ = self._api(model.api_ref)
        if model.prices or api is None:
            return model.prices
        return api.prices.get(model.name or api.default or "")

    def fallbacks(
        self,
        path: FieldPath,
        fallbacks: tuple[FallbackSpec, ...],
        parameters: Parameters,
        *,
        is_required: bool,
    ) -> tuple[ModelConfig, ...]:
        """Make the configuration of fallbacks; `parameters` are for those that have none."""
        return tuple(
            self._endpoint(
                (*path, "fallbacks", index),
                spec,
                spec.parameters or parameters,
                is_required=is_required,
            )
            for index, spec in enumerate(fallbacks)
        )

    def api_endpoint(self, name: str, api: ModelApiSpec, *, is_required: bool) -> ModelConfig:
        """Make the configuration of a ModelAPI's endpoint, without a model's name."""
        if api.hosted is None:
            return self._address(("spec",), api, is_required=is_required)
        url = self.targets.web_url(f"{self.namespace}/{name}", name)
        if url is None and is_required:
            self.add_problem(("spec", "hosted"), f"needs a cluster; give --service {name}=URL")
        return ModelConfig("", with_path(url or UNRESOLVED, "/v1"))

    def _api(self, ref: ApiRef | None) -> tuple[ModelApiSpec | None, "ModelReferences"]:
        """Find a ModelAPI, with a resolver of its own references."""
        id_ = (ref.namespace or self.namespace, ref.name) if ref else ("", "")
        found = self.targets.shared.apis.get(id_)
        if found is None:
            return None, self
        manifest, location = found
        return manifest.spec, ModelReferences(manifest.metadata.namespace, location, self.targets)

    def _endpoint(
        self,
        path: FieldPath,
        spec: ModelSpec | FallbackSpec,
        parameters: Parameters,
        *,
        is_required: bool,
    ) -> ModelConfig:
        if (ref := spec.api_ref) is None:
            found = self._address(path, spec, is_required=is_required)
            return replace(found, name=spec.name or "", **fields_of(parameters))
        api, references = self._api(ref)
        if api is not None:
            found = references.api_endpoint(ref.name, api, is_required=is_required)
            self.problems += references.problems
            parameters = overlaid(api.parameters, parameters)
            return replace(found, name=spec.name or api.default or "", **fields_of(parameters))
        namespace = ref.namespace or self.namespace
        url = self.targets.web_url(f"{namespace}/{ref.name}", ref.name)
        if ("ModelAPI", namespace, ref.name) in self.targets.shared.invalid:
            pass
        elif url is None:
            self.add_problem(
                (*path, "apiRef"),
                f"there is no ModelAPI {ref.name} here (namespace {namespace}); add its file, or "
                f"give --service {ref.name}=URL",
            )
        elif spec.name is None:
            self.add_problem(path, f"name is required: ModelAPI {ref.name} is not here to say it")
        endpoint = with_path(url or UNRESOLVED, "/v1")
        return ModelConfig(spec.name or "", endpoint, **fields_of(parameters))

    def _address(self, path: FieldPath, spec: Address, *, is_required: bool) -> ModelConfig:
        provider = PROVIDERS.get(spec.provider or "", _OTHER_PROVIDER)
        api_key = self._key(path, spec, provider, is_required=is_required)
        headers = self.values((*path, "headers"), spec.headers, is_required=is_required)
        if api_key and provider.key_header:
            headers[provider.key_header], api_key = api_key, None
        url = self._url(path, spec, provider).rstrip("/")
        return ModelConfig("", url, api_key=api_key, headers=headers)

    def _key(
        self, path: FieldPath, spec: Address, provider: Provider, *, is_required: bool
    ) -> ValueProvider | None:
        path = (*path, "apiKey")
        if spec.api_key:
            return self.key(path, "Secret", spec.api_key.secret_key_ref, is_required=is_required)
        if not provider.secret or spec.carries_key:
            return None
        read = self.key(
            path, "Secret", KeyRef(name=provider.secret, key=API_KEY), is_required=False
        )
        if is_required and not self.is_mounted and read() is None:
            self.add_problem(path, f"{spec.provider} needs a key; set {provider.key_variable}")
        return read

    def _url(self, path: FieldPath, spec: Address, provider: Provider) -> str:
        if spec.endpoint:
            return provider.complete(spec.endpoint)
        url, variable = provider.find_endpoint(self.targets.environ), provider.endpoint_variable
        if not url:
            self.add_problem(path, f"{spec.provider} needs its endpoint; set {variable}")
        elif problem := url_problem(url):
            self.add_problem(path, f"{variable}: {problem}")
        return url
