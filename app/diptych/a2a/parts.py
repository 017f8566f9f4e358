"""The parts of messages, as a model reads them, and of answers, as callers read them."""

import base64
import binascii
import mimetypes
import re
from collections.abc import Collection, Iterator
from typing import Any

import orjson
from a2a.types import Part
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message as ProtobufMessage

from diptych.a2a import extension
from diptych.core.messages import JSON, JSONObject

TEXT, DATA = "text/plain", "application/json"
IMAGES = ("image/png", "image/jpeg", "image/webp", "image/gif")
AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
"""The types of audio that the chat completions API takes, and its names for them."""
PDF = "application/pdf"

_TEXTUAL = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml)\b", re.ASCII)


def input_modes(inputs: Collection[str]) -> list[str]:
    """Return the media types that a model with these `model.inputs` takes."""
    modes = {"image": IMAGES, "audio": ("audio/wav", "audio/mpeg"), "file": (PDF,)}
    return [TEXT, DATA, *(mode for kind in inputs for mode in modes.get(kind, ()))]


def read_part(part: Part, inputs: Collection[str]) -> str | JSONObject:
    """Return a part's text, or its form in the chat completions API.

    Data is JSON text, and a file of text its text. Raises `ContentTypeNotSupportedError` for a part
    that a model with these `model.inputs` does not take.
    """
    match part.WhichOneof("content"):
        case "text":
            return part.text
        case "data":
            return orjson.dumps(sent_json(part.data)).decode()
        case "raw" if _TEXTUAL.match(_media_type(part)):
            try:
                return part.raw.decode()
            except UnicodeDecodeError:
                raise InvalidParamsError(f"{_named(part)} is not text in UTF-8") from None
        case "raw" | "url" as kind if form := _form(part, kind, inputs):
            return form
        case kind:
            raise ContentTypeNotSupportedError(
                f"{_named(part)} of kind {kind or 'none'} is not accepted: send text, data, files "
                f"of text, or one of {', '.join(input_modes(inputs)[2:]) or 'no other type'}"
            )


def _form(part: Part, kind: str, inputs: Collection[str]) -> JSONObject | None:
    """Return the form of a file in the chat completions API; None if the model takes none."""
    media_type = _media_type(part)
    group = media_type.partition("/")[0]
    if group == "image" and "image" in inputs:
        url = _data_url(part) if kind == "raw" else part.url
        return {"type": "image_url", "image_url": {"url": url}} if _is_usable(url) else None
    if kind == "url":  # the API takes no other file by its URL
        return None
    if media_type in AUDIO and "audio" in inputs:
        sound: JSONObject = {"data": _encoded(part), "format": AUDIO[media_type]}
        return {"type": "input_audio", "input_audio": sound}
    if "file" in inputs and group not in {"image", "audio"}:
        file: JSONObject = {"filename": part.filename or "file", "file_data": _data_url(part)}
        return {"type": "file", "file": file}
    return None


def _is_usable(url: str) -> bool:
    return url.startswith(("https://", "http://", "data:image/"))


def _media_type(part: Part) -> str:
    guessed = mimetypes.guess_type(part.filename or part.url)[0]
    return (part.media_type or guessed or "application/octet-stream").partition(";")[0].lower()


def _encoded(part: Part) -> str:
    return base64.b64encode(part.raw).decode()


def _data_url(part: Part) -> str:
    return f"data:{_media_type(part)};base64,{_encoded(part)}"


def _named(part: Part) -> str:
    names = ", ".join(filter(None, (part.filename[:100], part.media_type[:100])))
    return f"a part ({names})" if names else "a part"


def sent_json(message: ProtobufMessage) -> Any:  # noqa: ANN401 - what the caller sent
    """Convert what a caller sent to JSON. Raises `InvalidParamsError`."""
    try:
        return extension.json_of(message)
    except ValueError as error:  # NaN and infinity
        raise InvalidParamsError("the message holds a number that JSON does not have") from error


def answer_parts(text: str, schema: JSONObject | None) -> list[Part]:
    """Return the parts of a typed answer: files, then its value, then its text.

    Files are the strings of the answer, or of its properties, of which `schema` says what they
    hold, as JSON Schema does: `contentMediaType` and `contentEncoding` of a file (its name is the
    `title`), `format: uri` of a URL.
    """
    value = orjson.loads(text)
    data = Part(media_type=DATA)
    ParseDict(value, data.data)
    return [*_files(value, schema or {}), data, Part(text=text)]


def _files(value: JSON, schema: JSONObject) -> Iterator[Part]:
    yield from _file(value, schema)
    properties = schema.get("properties")
    if isinstance(value, dict) and isinstance(properties, dict):
        for name, each in value.items():
            if isinstance(about := properties.get(name), dict):
                yield from _file(each, {"title": name, **about})


def _file(value: JSON, schema: JSONObject) -> Iterator[Part]:
    media_type, name = schema.get("contentMediaType"), schema.get("title")
    if not isinstance(value, str):
        return
    if schema.get("format") == "uri":
        part = Part(url=value)
    elif not isinstance(media_type, str):
        return
    elif schema.get("contentEncoding") == "base64":
        try:
            part = Part(raw=base64.b64decode(value, validate=True))
        except binascii.Error:
            return  # the value has it as it is
    else:
        part = Part(raw=value.encode())
    part.media_type = media_type if isinstance(media_type, str) else ""
    part.filename = name if isinstance(name, str) else ""
    part.metadata.update({extension.URI: {"isInValue": True}})  # our own callers have it already
    yield part
