"""Golden files: objects as YAML, each longer part that comes twice written once.

WRITE_GOLDEN=1 in the environment writes them anew.
"""

import json
import os

import yaml

_SHORT = 4  # lines; what has no more is written in full each time


def assert_golden(objects, path):
    if "WRITE_GOLDEN" in os.environ:
        text = yaml.dump(
            _interned(objects, {}),
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            default_flow_style=None,
            width=100,
        )
        path.write_text(text, encoding="utf-8")
    assert objects == yaml.safe_load(path.read_text(encoding="utf-8"))


def _interned(value, known):
    """Return equal parts as the same object, for which YAML has aliases."""
    if isinstance(value, dict):
        value = {name: _interned(inner, known) for name, inner in value.items()}
    elif isinstance(value, list | tuple):
        value = [_interned(inner, known) for inner in value]
    return known.setdefault(json.dumps(value), value)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data):
        is_nested = isinstance(data, dict | list)
        return not is_nested or yaml.safe_dump(data).count("\n") <= _SHORT

    def represent_text(self, data):
        return self.represent_scalar(
            "tag:yaml.org,2002:str", data, style="|" if "\n" in data else None
        )


_Dumper.add_representer(str, _Dumper.represent_text)
