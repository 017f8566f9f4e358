"""What the schemas of all replies have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict


def _without_null(schema: dict[str, Any]) -> None:
    """Say that what is not required is left out, where pydantic says that it is null."""
    for name, field in schema["properties"].items():
        if name not in schema.get("required", ()) and "anyOf" in field:
            (field_type,) = [each for each in field.pop("anyOf") if each != {"type": "null"}]
            del field["default"]
            field.update(field_type)


CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True, json_schema_extra=_without_null)


class Reply(BaseModel):
    """Has no other fields than those named."""

    model_config = CONFIG
