"""What `from diptych import …` gives at run time is what type checkers are told."""

import ast
from importlib import import_module
from pathlib import Path

import diptych


def test_each_public_name_is_the_one_that_type_checkers_see():
    tree = ast.parse(Path(diptych.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    told = {
        alias.name: getattr(import_module(node.module), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert sorted(told) == sorted(diptych.__all__)
    assert [name for name in told if getattr(diptych, name) is not told[name]] == []
