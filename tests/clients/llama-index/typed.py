"""Typed outputs by llama-index, in all its ways: prints them as JSON. First argument: base URL."""

import json
import sys

from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    name: str
    population: int


found = {}
for way, fields in {
    "tool": {"is_function_calling_model": True},
    "words": {"is_function_calling_model": False},
    "format": {"should_use_structured_outputs": True},
}.items():
    llm = OpenAILike(
        model="helper",
        api_base=f"{sys.argv[1]}/v1",
        api_key="none",
        is_chat_model=True,
        max_retries=0,
        **fields,
    )
    found[way] = llm.structured_predict(City, PromptTemplate("Which city?")).model_dump()
    found[f"{way}, wrapped"] = llm.as_structured_llm(City).complete("Which city?").raw.model_dump()
print(json.dumps(found))
