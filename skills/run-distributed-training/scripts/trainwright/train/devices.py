# train/devices.py without its comments
from __future__ import annotations

import json
from typing import Any


def find() -> dict[str, Any]:
    try:
        import torch
    except Exception as problem:
        return {"torch": None, "devices": [], "error": f"{type(problem).__name__}: {problem}"[:300]}
    devices = [_describe(kind, index) for kind in ("cuda", "xpu") for index in range(_count(torch, kind))]
    return {"torch": str(torch.__version__), "devices": devices, "error": None}


def _count(torch: Any, kind: str) -> int:
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None and module.is_available() else 0


def _describe(kind: str, index: int) -> dict[str, Any]:
    import torch

    properties = getattr(torch, kind).get_device_properties(index)
    return {"kind": kind, "index": index, "name": str(properties.name), "memory_bytes": int(properties.total_memory)}


if __name__ == "__main__":
    print(json.dumps(find()))
