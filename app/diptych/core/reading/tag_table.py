"""The tags and tokens between which published models write calls, as patterns.

Sources: the chat templates that llama.cpp publishes (`models/templates`), whose own renderings of
a call are the test data of this package, and the model cards of Llama 3 and 4, Phi-4 and Granite.
"""

import re

NOISE = "]<]minimax[>["
"""What MiniMax-M3 writes before each tag."""

QUOTES = ("`", '"', "'", "\u201c", "\u2018", "\u00ab")
"""What stands before a tag that is only mentioned."""

_N = r"[^\s<>\[\]{}()\"'`|\uff5c]{1,128}+"  # a name
_FENCED = r"(?:```(?:json)?)?\s*+"
_PREFIX = r"(?:\uff5cDSML\uff5c|[\w-]{1,24}:)?"

_JSON = (  # JSON with the name in it follows
    r"(?:<tool_calls?>|<TOOLCALL>|<\|tool_calls?\|>|<\|tool_call_start\|>|\[TOOL_CALLS\]"
    r"|<\|python_tag\|>|<\|python_start\|>|<\|function_call\|>|<\|START_ACTION\|>"
    r"|<\|tools_prefix\|>|function call<\|role_sep\|>|\bfunctools(?=\[\{))"
)
_NAMED = "|".join(  # a name, then JSON
    (
        rf"\[TOOL_CALLS\]\s*+(?P<name1>{_N})(?:\[CALL_ID\]\s*+[\w-]{{0,64}})?\s*+(?:\[ARGS\])?",
        rf"<function=(?P<name2>{_N})>",
        rf"<\|tool_call_begin\|>\s*+(?P<name3>{_N})\s*+<\|tool_call_argument_begin\|>",
        (
            r"<\uff5ctool\u2581call\u2581begin\uff5c>(?:function<\uff5ctool\u2581sep\uff5c>)?"
            rf"(?P<name4>{_N})(?:<\uff5ctool\u2581sep\uff5c>|\s++)"
        ),
        (
            r"<\|tool_call:begin\|>[^<]{0,64}<\|tool_call:name\|>"
            rf"(?P<name5>{_N})<\|tool_call:args\|>"
        ),
        (
            r"(?:<\|start\|>assistant)?(?:<\|channel\|>\s*+commentary\s*+)?\bto="
            rf"(?P<name6>{_N})\s*+(?:<\|channel\|>\s*+\w{{1,24}}\s*+)?(?:<\|constrain\|>\s*+)?"
            r"(?:\w{1,24}\s*+)?<\|message\|>"
        ),
    )
)
_FIELDS = "|".join(  # a name, then fields between tags
    (
        rf"(?:<tool_call>\s*+)?<function=(?P<name7>{_N})>\s*+(?=<parameter=|</function>)",
        rf'<{_PREFIX}invoke name="(?P<name8>{_N})">',
        rf'<function name="(?P<name9>{_N})">',
        (
            rf"<tool_call(?::\w{{1,24}})?>\s*+(?P<nameA>{_N})\s*+(?:<tool_sep(?::\w{{1,24}})?>\s*+)?"
            r"(?=<arg_key|</tool_call)"
        ),
        rf'<\|open\|>call tool="(?P<nameB>{_N})"[^<>\n]{{0,64}}<\|sep\|>',
    )
)

OPENERS = re.compile(
    rf"(?P<fields>{_FIELDS})"
    rf"|(?P<then_json>(?:{_NAMED})\s*+{_FENCED}(?=\{{))"
    rf"|(?P<gemma><\|tool_call>\s*+call:(?P<nameC>{_N})(?=\{{))"
    rf"|(?P<json>{_JSON}\s*+{_FENCED}(?=[\[{{]))"
    r"|(?P<code>(?:<\|python_tag\|>|<\|python_start\|>|<\|tool_call_start\|>)\s*+(?=[\w.]{1,128}\())"
)
"""What opens a call; the last group is its kind. What follows must look like one."""

ARGUMENT = re.compile(
    rf"<(?P<tag>{_PREFIX}(?:parameter|param))"
    r'(?:=(?P<key1>[^>\n]{1,128})|\s+name="(?P<key2>[^"\n]{1,128})"(?P<says>[^>\n]{0,64}))>'
    r"|<arg_key(?::\w{1,24})?>\s*+(?P<key3>[^<\n]{1,128}?)\s*+</arg_key(?::\w{1,24})?>"
    r"\s*+<(?P<value_tag>arg_value(?::\w{1,24})?)>"
    r'|<\|open\|>argument key="(?P<key4>[^"\n]{1,128})" type="(?P<type>\w{1,24})"<\|sep\|>'
)
"""What opens an argument between tags of its own."""

ANY_TAG = re.compile(r"<(?P<tag>[\w-]{1,64})>")
"""What opens an argument of MiniMax-M3, whose tags are its arguments' names."""

CLOSERS = re.compile(
    rf"</{_PREFIX}(?:tool_calls?|function_calls|invoke)(?::\w{{1,24}})?>|</function>|</TOOLCALL>"
    r"|<\|/?tool_calls?(?:_end)?\|>|<\|END_ACTION\|>|<\|tools_suffix\|>|<\|calls?\|>"
    r"|<\uff5ctool\u2581calls?\u2581end\uff5c>|<tool_call\|>|<\|tool_call:end\|>"
    r"|<\|close\|>call<\|sep\|>|<\|tool_calls_section_end\|>|<\|python_end\|>"
)
"""What closes a call."""

TOKENS = re.compile(
    r"<\|(?:open|close)\|>\w{1,24}<\|sep\|>|<\|start\|>assistant(?:\s+to=[^\s<]{1,128})?"
    r"|<\|[\w:/ ]{1,40}\|>|</s>"
    r"|<\uff5c[^<>\uff5c\n]{1,40}\uff5c>"
    rf"|</?{_PREFIX}(?:tool_calls?|function_calls)(?::\w{{1,24}})?>"
)
"""What may stand around calls and says nothing."""

CODE_END = "<|"
"""What ends code between tokens."""

GEMMA_END = "<tool_call|>"
GEMMA_TOKEN = re.compile(r'<\|"\|>(?P<text>.*?)<\|"\|>|(?P<key>[\w.$-]+)(?=\s*+:)', re.DOTALL)
"""Strings and keys of Gemma 4, which are JSON but for their quotation marks."""
