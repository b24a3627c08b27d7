# helpers/trainwright/check/context.py without its comments
from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from trainwright.check.subject import DEVICES, Context
from trainwright.document import load_mapping
from trainwright.errors import UserError
from trainwright.report import Report

PACKAGES = ("accelerate", "deepspeed", "transformers", "torch")
KINDS: dict[str, tuple[type, ...]] = {
    "world_size": (int,),
    "gpus_per_node": (int,),
    "gradient_accumulation_steps": (int,),
    "device": (str,),
    "hardware": (str,),
    "model_class": (str,),
    "training_args": (dict,),
    "quantization": (dict,),
    "ddp_kwargs": (dict,),
    "optimizer": (str,),
    "hf": (bool,),
    "trainer": (str, bool),
    "cli": (list, str),
    "path": (str,),
    "device_map": (str, dict),
    "torch_dtype": (str,),
    "xpu_backend": (str,),
    "outer_autocast": (bool,),
    "resume_from_checkpoint": (bool, str),
    "same_file_on_every_node": (bool,),
    "call": (str,),
    **dict.fromkeys(PACKAGES, (str, int, float)),
}


def read_context(path: str, context: Context, report: Report) -> Context:
    found: dict[str, Any] = {}
    versions: dict[str, str] = {}
    for key, value in load_mapping(path).value.items():
        if value is None:
            continue
        if key not in KINDS:
            report.skip(f"context: {key}", "is no fact that check knows; it is not used")
        elif not isinstance(value, KINDS[key]) or (isinstance(value, bool) and bool not in KINDS[key]) or not _fits(key, value):
            report.skip(f"context: {key}", f"{json.dumps(value, default=str)[:60]} is not what is meant by it; it is not used")
        elif key in PACKAGES:
            versions[key] = str(value)
        else:
            found[key] = _converted(key, value)
    given = {field.name for field in fields(context) if getattr(context, field.name) not in (None, {}, (), "")}
    return replace(context, **{k: v for k, v in found.items() if k not in given}, versions={**versions, **context.versions})


def _fits(key: str, value: Any) -> bool:
    if KINDS[key] == (int,):
        return 0 < int(value) <= 10**7
    return value in DEVICES if key == "device" else True


def _converted(key: str, value: Any) -> Any:
    if key == "cli":
        from trainwright.check.flags import split

        return tuple(map(str, value)) if isinstance(value, list) else tuple(split(value))
    if key == "device_map":
        return value if isinstance(value, str) else "mapping"
    return bool(value) if key == "resume_from_checkpoint" else value


def installed_versions(interpreter: str) -> dict[str, str]:
    found = versions_in(interpreter, PACKAGES)
    if not found:
        raise UserError(f"--python {interpreter}: has none of {', '.join(PACKAGES)}")
    return found


def versions_in(interpreter: str, packages: Iterable[str]) -> dict[str, str]:
    code = (
        "import importlib.metadata as m\n"
        f"for p in {list(packages)!r}:\n"
        "    try: print(p, m.version(p))\n"
        "    except m.PackageNotFoundError: pass"
    )
    if not os.path.isfile(interpreter):
        raise UserError(f"--python {interpreter}: is no file; give the path of the job's python")
    import subprocess

    argv = [interpreter, "-I", "-c", code]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as problem:
        raise UserError(f"--python {interpreter}: does not run: {problem}") from None
    if done.returncode != 0:
        raise UserError(f"--python {interpreter}: does not run: {(done.stderr.strip().splitlines() or ['no answer'])[-1][:200]}")
    return dict(re.findall(r"^([\w.-]+) (\S+)$", done.stdout, re.MULTILINE))


def context_json(context: Context) -> Mapping[str, Any]:
    rows = {f.name: getattr(context, f.name) for f in fields(context) if getattr(context, f.name) not in (None, {}, (), "")}
    rows["model"] = context.model.name if context.model else None
    return {"world_size": None, "device": None, **rows}
