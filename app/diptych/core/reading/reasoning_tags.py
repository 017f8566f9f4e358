"""The tags and tokens between which published models write their reasoning."""

import re

PAIRS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<think:opensource>": "</think:opensource>",  # Hunyuan
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "<mm:think>": "</mm:think>",  # MiniMax
    "[THINK]": "[/THINK]",  # Mistral
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|open|>think<|sep|>": "<|close|>think<|sep|>",  # Kimi K3
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
}
RESPONSE_ENDS = {"[BEGIN FINAL RESPONSE]": ("[END FINAL RESPONSE]",)}
"""What ends the reasoning of Apriel, whose opening always stands in the prompt, and the answer."""

CLOSERS = (*PAIRS.values(), *RESPONSE_ENDS)
TAGS = (*PAIRS, *CLOSERS)
CLOSER = re.compile("|".join(map(re.escape, CLOSERS)))
OPENING = re.compile("|".join(map(re.escape, PAIRS)))

START = "<|start|>assistant"
CHANNEL = "<|channel|>"
HEADER = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>(?P<channel>analysis|final|commentary)\s*<\|message\|>"
)
HEADER_LENGTH = 80
ANALYSIS_END = re.compile(r"<\|end\|>|(?=<\|start\|>assistant|<\|channel\|>)")
ANALYSIS_TAGS = ("<|end|>", "<|start|>assistant", "<|channel|>")
FINAL_ENDS = ("<|return|>", "<|end|>")

FIRSTS = frozenset(tag[0] for tag in (*TAGS, *ANALYSIS_TAGS, *FINAL_ENDS))
"""With what any of them begins."""
