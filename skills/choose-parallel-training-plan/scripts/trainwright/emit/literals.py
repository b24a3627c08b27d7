# emit/literals.py without its comments
from __future__ import annotations

import ast
from typing import Any


def constants(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def calls(text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            called = node.value.func
            name = called.value if isinstance(called, ast.Attribute) else called
            words = {one.arg or "": ast.literal_eval(one.value) for one in node.value.keywords}
            found[node.targets[0].id] = (name.id if isinstance(name, ast.Name) else "", words)
    return found
