"""The words with which servers say why a reply ended, as those of OpenAI's API. Pure.

A reply that was cut off or filtered must not look whole, whatever its server calls that (loop.md
§7).
"""

_CUT = frozenset(
    {
        "length",
        "max_tokens",  # Anthropic, Bedrock, Gemini, Cohere
        "max_output_tokens",  # the Responses API
        "model_length",  # Mistral
        "model_context_window_exceeded",  # Anthropic, GLM
        "error_limit",  # Cohere
    }
)
_FILTERED = frozenset(
    {
        "content_filter",  # Gemini adds its own word: "content_filter: SAFETY"
        "content_filtered",  # Bedrock
        "guardrail_intervened",
        "safety",  # Gemini, as the next four
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "sensitive",  # GLM
        "refusal",  # Anthropic
        "error_toxic",  # Cohere
    }
)
_FAILED = frozenset(
    {
        "error",  # OpenRouter
        "abort",  # vLLM, SGLang
        "cancelled",
        "canceled",
        "network_error",  # GLM
        "insufficient_system_resource",  # DeepSeek
        "malformed_function_call",  # Gemini
        "system_error",
        "server_error",
        "internal_error",
    }
)


def canonical_reason(said: str) -> str:
    """Give `length` for a reply that was cut off, `content_filter` for one that was filtered.

    Any other word stays as it is.
    """
    words = _words(said)
    if words & _CUT:
        return "length"
    return "content_filter" if words & _FILTERED else said


def is_failure(said: object) -> bool:
    """Say whether the server says that the reply is not the model's."""
    return isinstance(said, str) and bool(_words(said) & _FAILED)


def _words(said: str) -> set[str]:
    """Give the words of "function_call_filter: MALFORMED_FUNCTION_CALL" and the like."""
    return {word.strip() for word in said.lower().replace("-", "_").split(":")}
