#!/usr/bin/env python3
"""Write check/tables/constructors.json: the parameters of what a training script constructs, read from the installed libraries.

    python tools/constructor_tables.py

By syntax tree alone: no library is imported. Run it with the Python that has accelerate and torch installed.
"""

from __future__ import annotations

import ast
import json
import sys
from importlib.metadata import distribution
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "helpers/trainwright/check/tables/constructors.json"
FILES = {
    "accelerate": [
        "accelerate/accelerator.py",
        "accelerate/utils/dataclasses.py",
        "accelerate/parallelism_config.py",
        "accelerate/local_sgd.py",
    ],
    "torch": [
        "torch/distributed/distributed_c10d.py",
        "torch/nn/parallel/distributed.py",
        "torch/distributed/fsdp/fully_sharded_data_parallel.py",
        "torch/distributed/fsdp/_fully_shard/_fully_shard.py",
    ],
}
WANTED = {
    "accelerate": ("Accelerator", "LocalSGD"),
    "torch": ("init_process_group", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"),
}


def parameters(function: ast.FunctionDef) -> list[str]:
    names = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]]
    return [name for name in names if name != "self"] + (["**"] if function.args.kwarg else [])


def fields(tree: ast.Module, found: dict[str, list[str]]) -> None:
    """Add the parameters of every dataclass, and of every class with a constructor, to `found`; bases come first in the files."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = parameters(node)
        if not isinstance(node, ast.ClassDef):
            continue
        made = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
        if made is not None:
            found[node.name] = parameters(made)
        elif any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            own = [f for f in node.body if isinstance(f, ast.AnnAssign) and "ClassVar" not in ast.unparse(f.annotation)]
            names = [f.target.id for f in own if isinstance(f.target, ast.Name) and "init=False" not in ast.unparse(f).replace(" ", "")]
            inherited = [name for base in node.bases for name in found.get(ast.unparse(base), [])]
            found[node.name] = list(dict.fromkeys([*inherited, *names]))


def main() -> int:
    table: dict[str, object] = {}
    for package, paths in FILES.items():
        found: dict[str, list[str]] = {}
        for path in paths:
            fields(ast.parse(Path(str(distribution(package).locate_file(path))).read_text(encoding="utf-8")), found)
        ends = ("Kwargs", "Plugin", "Config", "Configuration")
        kept = {n: p for n, p in found.items() if n in WANTED[package] or (package == "accelerate" and n.endswith(ends))}
        release = ".".join(distribution(package).version.split("+")[0].split(".")[:2])
        table[package] = {"version": release, "parameters": dict(sorted(kept.items()))}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
