# train/stack.py without its comments
from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

PACKAGES_ONLY, WITHIN = "--packages-only", "--within="
MOST_DEVICES = 1024
_BUILD = re.compile(r"^(cuda|hip|xpu|debug)\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]*)['\"]", re.MULTILINE)


def packages(names: list[str]) -> dict[str, Any]:
    found = {name: dist for name in names if (dist := _distribution(name)) is not None}
    user = _user_folder()
    return {
        "stage": "packages",
        "python": ".".join(map(str, sys.version_info[:3])),
        "virtual": sys.prefix != sys.base_prefix,
        "versions": {name: str(dist.version) for name, dist in found.items()},
        "user_packages": [name for name, dist in found.items() if user and _lies_in(dist, user)],
        "unmet": [gap for name, dist in found.items() for gap in _unmet(name, dist)],
        "torch": _torch_build(),
    }


def _distribution(name: str) -> Any:
    try:
        found = importlib.metadata.distribution(name)
        return found if found.version else None
    except Exception:
        return None


def _user_folder() -> str:
    import site

    return os.path.realpath(site.getusersitepackages()) if site.ENABLE_USER_SITE and sys.prefix == sys.base_prefix else ""


def _lies_in(dist: Any, folder: str) -> bool:
    return os.path.realpath(str(dist.locate_file(""))) == folder


def _unmet(name: str, dist: Any) -> list[dict[str, Any]]:
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return []
    gaps = []
    for line in dist.requires or []:
        try:
            need = Requirement(line)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            other = _distribution(need.name)
            version = str(other.version) if other is not None else None
            if version is None or not need.specifier.contains(version, prereleases=True):
                gaps.append({"package": name, "needs": f"{need.name}{need.specifier}", "found": version})
        except Exception:
            continue
    return gaps


def _torch_build() -> dict[str, Any]:
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:
        return {"state": "absent"}
    folders = list(spec.submodule_search_locations or [])
    text = ""
    for folder in folders[:1]:
        try:
            text = Path(folder, "version.py").read_text(encoding="utf-8", errors="replace")[:10_000]
        except OSError:
            text = ""
    built = dict(_BUILD.findall(text))
    return {"state": "unknown", "cuda": built.get("cuda"), "hip": built.get("hip"), "xpu": built.get("xpu")}


def torch_answer() -> dict[str, Any]:
    try:
        import torch
    except BaseException as problem:
        return {"stage": "torch", "state": "broken", "error": _said(problem)[:500]}
    try:
        version = str(getattr(torch, "__version__", ""))[:100] or None
        devices = [_describe(torch, kind, index) for kind in ("cuda", "xpu", "hpu") for index in range(_count(torch, kind))]
        return {"stage": "torch", "state": "ok", "version": version, "devices": devices, "backends": _backends(torch)}
    except Exception as problem:
        said = f"it imports, but asking it for devices raises {_said(problem)}"
        return {"stage": "torch", "state": "broken", "error": said[:500]}


def _said(problem: BaseException) -> str:
    try:
        return f"{type(problem).__name__}: {problem}"
    except Exception:
        return type(problem).__name__


def _count(torch: Any, kind: str) -> int:
    module = getattr(torch, kind, None)
    return min(int(module.device_count()), MOST_DEVICES) if module is not None and module.is_available() else 0


def _describe(torch: Any, kind: str, index: int) -> dict[str, Any]:
    module = getattr(torch, kind)
    if not hasattr(module, "get_device_properties"):
        return {"kind": kind, "name": str(module.get_device_name(index))[:200], "memory_bytes": None}
    properties = module.get_device_properties(index)
    memory = getattr(properties, "total_memory", None)
    return {"kind": kind, "name": str(getattr(properties, "name", kind))[:200], "memory_bytes": int(memory) if memory else None}


def _backends(torch: Any) -> list[str]:
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available():
        return []
    return [name for name in ("gloo", "nccl", "xccl", "mpi") if getattr(dist, f"is_{name}_available", lambda: False)()]


def _on_disk(place: str) -> bool:
    return os.path.isdir(place) or os.path.isfile(place)


def main(arguments: list[str]) -> None:
    names = [name for name in arguments if not name.startswith("--")]
    for seconds in (name[len(WITHIN) :] for name in arguments if name.startswith(WITHIN)):
        signal.alarm(int(seconds))
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != here and _on_disk(place or ".")]
    answer = packages(names)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as told:
        os.dup2(2, 1)
        print(json.dumps(answer), file=told, flush=True)
        if answer["torch"]["state"] != "absent" and PACKAGES_ONLY not in arguments:
            print(json.dumps(torch_answer()), file=told, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
