# check/rules/source_devices.py without its comments
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from trainwright.check.source.module import Call, words_of
from trainwright.check.source.program import Program, text_of
from trainwright.check.source.ranks import is_collective
from trainwright.check.source.values import Symbol
from trainwright.report import Severity
from trainwright.rules import Hit, rule

_SETS = (
    "torch.cuda.set_device",
    "torch.xpu.set_device",
    "torch.accelerator.set_device_index",
    "torch.accelerator.set_device_idx",
    "torch.accelerator.device_index",
    "deepspeed.accelerator.get_accelerator().set_device",
)
_BY_OBJECT = ("barrier", "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")


def inits(program: Program) -> list[Call]:
    return [call for call in program.calls if call.of("torch", "init_process_group") or call.of("deepspeed", "init_distributed")]


def backend_of(program: Program, call: Call) -> str:
    value = program.value(call.argument("dist_backend" if call.last == "init_distributed" else "backend", 0))
    return value.lower() if isinstance(value, str) else ""


def on_xpu(program: Program) -> bool:
    if program.device is not None:
        return program.device == "xpu"
    names = {call.name for call in program.calls}
    backends = {backend_of(program, call) for call in inits(program)}
    if any("xccl" in backend or backend in ("ccl", "xpu:ccl") for backend in backends):
        return not any(name.startswith("torch.cuda.set") for name in names)
    return any(name.startswith("torch.xpu.set_device") for name in names) and "torch.cuda.set_device" not in names


@rule("SRC007", Severity.ERROR, Program, fails_at="first step", checked="source", source="ezpz-149")
def device_set_after_init(program: Program) -> Iterator[Hit]:
    """The process group is made before the rank has chosen its device, so that all ranks of a node talk through the first one.

    On XPU every process group then binds device 0, and FSDP2 waits for ever in its first all_gather_into_tensor: call
    `torch.xpu.set_device(local_rank)` before `init_process_group`. On CUDA the order matters where a barrier or a collective of objects
    stands between the two (a warning): it takes the current device, which is still the first.

    Bad `train.py`:

        import os
        import torch
        import torch.distributed as dist

        dist.init_process_group(backend="xccl")
        torch.xpu.set_device(int(os.environ["LOCAL_RANK"]))

    Good `train.py`:

        import os
        import torch
        import torch.distributed as dist

        torch.xpu.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(backend="xccl")
    """
    sets = [call for call in program.calls if call.name in _SETS]
    for init in inits(program):
        same = [call for call in sets if call.place.function is init.place.function]
        after = [call for call in same if call.order > init.order]
        before = [call for call in same if call.order < init.order]
        if before or init.argument("device_id") is not None or backend_of(program, init) == "gloo":
            continue
        if on_xpu(program) and after and after[0].name != "torch.cuda.set_device":
            yield Hit(
                "set_device() after init_process_group(): on XPU every rank binds device 0, and FSDP2 hangs", program.at(after[0].node)
            )
        elif on_xpu(program) and not sets and not _elsewhere(program):
            yield Hit("init_process_group() on XPU, and nothing sets the device first: every rank binds device 0", program.at(init.node))
        elif after and after[0].name == "torch.cuda.set_device" and not on_xpu(program):
            yield from _between(program, init, after[0])


def _between(program: Program, init: Call, chosen: Call) -> Iterator[Hit]:
    for call in program.calls:
        if (
            init.order < call.order < chosen.order
            and is_collective(call)
            and call.last in _BY_OBJECT
            and call.place.function is init.place.function
            and call.place.guards == init.place.guards
            and "device_ids" not in call.keywords
        ):
            message = f"{call.last}() before torch.cuda.set_device(): it uses the current device, which is the first one on every rank"
            yield Hit(message, program.at(call.node), severity=Severity.WARNING)


def _elsewhere(program: Program) -> bool:
    masks = {"ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"}
    if masks & {*program.job.environment} or masks & program.module.texts:
        return True
    installed = (
        "torch",
        "os",
        "sys",
        "argparse",
        "time",
        "math",
        "json",
        "datetime",
        "numpy",
        "mpi4py",
        "socket",
        "random",
        "typing",
        "pathlib",
        "logging",
        "functools",
    )
    return any(
        name.split(".")[0] not in (*installed, "__future__", "intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")
        for name, _, _ in program.module.imports
    )


@rule("SRC008", Severity.ERROR, Program, fails_at="engine start", checked="source", source="torch-2.13.0-distributed")
def device_id_against_backend(program: Program) -> Iterator[Hit]:
    """A device_id of init_process_group() that its backend cannot use.

    It has to be one accelerator with an index ("cpu" and a device without an index stop). On XPU, with a backend for both devices
    ("xpu:xccl,cpu:gloo"), it leaves only the one of that device, so that collectives on the CPU, as asynchronous checkpoints make
    them, fail. With xccl, which cannot split a group, a mesh of two or more dimensions stops ("No backend for the parent process
    group or its backend does not support splitting"); alone it is a warning there: DataLoader workers have hung with it.

    Bad `train.py`:

        import torch
        import torch.distributed as dist

        torch.xpu.set_device(0)
        dist.init_process_group("xpu:xccl,cpu:gloo", device_id=torch.device("xpu", 0))

    Good `train.py`:

        import torch
        import torch.distributed as dist

        torch.xpu.set_device(0)
        dist.init_process_group("xpu:xccl,cpu:gloo")
    """
    for call in inits(program):
        device = call.argument("device_id")
        if device is None or (isinstance(device, ast.Constant) and device.value is None):
            continue
        backend, named = backend_of(program, call), _device(program, device)
        if named == "cpu":
            yield Hit("device_id is the CPU: it has to be an accelerator with an index", program.at(device), "device_id")
        elif named and ":" not in named and isinstance(device, ast.Call) and len(device.args) == 1 and not device.keywords:
            yield Hit(f'device_id "{named}" has no index: init_process_group() stops', program.at(device), "device_id")
        elif isinstance(program.value(device), str):
            yield Hit("device_id is text: it has to be a torch.device or a number", program.at(device), "device_id")
        elif "," in backend and ("xccl" in backend or on_xpu(program)):
            yield Hit(
                f"device_id with backend {backend!r}: only the backend of that device is left",
                program.at(device),
                "device_id",
                fails_at="first step",
            )
        elif "xccl" in backend or (on_xpu(program) and "nccl" not in backend):
            yield from _with_xccl(program, device)


def _device(program: Program, node: ast.expr) -> str:
    while isinstance(node, ast.Name) and len(values := program.module.bindings.get(node.id, [])) == 1 and values[0] is not None:
        node = values[0]
    if isinstance(node, ast.Call) and program.module.name_of(node.func) == "torch.device" and node.args:
        kind = program.value(node.args[0])
        return f"{kind}:" if isinstance(kind, str) and len(node.args) > 1 else kind if isinstance(kind, str) else ""
    return ""


def _with_xccl(program: Program, device: ast.expr) -> Iterator[Hit]:
    for call in program.module.called("torch", "init_device_mesh"):
        shape = program.value(call.argument("mesh_shape", 1))
        node = call.argument("mesh_shape", 1)
        dims = len(shape) if isinstance(shape, list) else len(node.elts) if isinstance(node, (ast.Tuple, ast.List)) else 0
        if dims > 1:
            message = "device_id with xccl and a device mesh of several dimensions: xccl cannot split the group, and the mesh stops"
            yield Hit(message, program.at(device), "device_id")
            return
    message = "device_id with xccl: DataLoader workers and split groups have failed with it; set_device() before init is enough"
    yield Hit(message, program.at(device), "device_id", severity=Severity.WARNING, fails_at="first step")


@rule("SRC009", Severity.ERROR, Program, fails_at="engine start", checked="run", source="torch-2.13.0-distributed")
def hard_coded_for_another_device(program: Program) -> Iterator[Hit]:
    """A backend or a device is written for another kind of machine than the job runs on.

    `nccl` and `torch.cuda` exist where CUDA does: on XPU the backend is `xccl`, on Gaudi `hccl`, on CPUs `gloo`. Without a backend
    init_process_group() takes the right one. What stands behind a test of the device (`torch.cuda.is_available()`) is not told, and
    nothing is where the job's device is not known (`--device`, or the Accelerate config).

    Bad `train.py` with `--device xpu`:

        import torch.distributed as dist

        dist.init_process_group(backend="nccl")

    Good `train.py` with `--device xpu`:

        import os
        import torch
        import torch.distributed as dist

        torch.xpu.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group()
    """
    device = program.device
    if device not in ("cpu", "xpu", "hpu", "npu"):
        return
    right = {"cpu": "gloo", "xpu": "xccl", "hpu": "hccl", "npu": "hccl"}[device]
    for call in inits(program):
        if backend_of(program, call) in ("nccl", "cuda:nccl") and not _tested(program, call):
            message = f"backend nccl on {device}: there is none; leave it out, or {right}"
            yield Hit(message, program.at(call.node), "backend")
    cuda = [call for call in program.calls if _is_cuda(program, call) and not call.place.guards and not call.place.tried]
    if cuda:
        lines = sorted({call.node.lineno for call in cuda})
        more = f" (and {len(lines) - 1} more lines)" if len(lines) > 1 else ""
        yield Hit(
            f"{_cuda_shown(program, cuda[0])} on {device}{more}: this stops, or computes elsewhere",
            program.at(cuda[0].node),
            "cuda",
            fails_at="first step",
            data={"lines": lines},
        )


def _is_cuda(program: Program, call: Call) -> bool:
    if call.name in ("torch.cuda.set_device", "torch.cuda.synchronize", "torch.cuda.Stream"):
        return True
    if call.last == "cuda" and isinstance(call.node.func, ast.Attribute):
        return not call.name.startswith("torch.cuda")
    given = call.argument("device") if call.last != "device" else call.argument("type", 0)
    given = call.argument("", 0) if call.last == "to" else given
    value = program.value(given) if given is not None and (call.last in ("to", "device") or call.name.startswith("torch.")) else None
    return isinstance(value, str) and value.split(":")[0] == "cuda"


def _cuda_shown(program: Program, call: Call) -> str:
    return (
        f"{call.name}()"
        if call.name.startswith("torch.cuda")
        else f'.{call.last}("cuda")'
        if call.last == "to"
        else ".cuda()"
        if call.last == "cuda"
        else f"{call.last}(... cuda ...)"
    )


def _tested(program: Program, call: Call) -> bool:
    words = ("cuda", "device", "xpu", "gpu", "available", "backend", "accelerator")
    return call.place.tried or any(any(w in words_of(g.test) for w in words) for g in call.place.guards)


@rule("SRC010", Severity.WARNING, Program, fails_at="engine start", checked="source", source="alcf-user-guides")
def removed_xpu_binding(program: Program) -> Iterator[Hit]:
    """Bindings that stacks for XPU no longer have: oneccl_bindings_for_pytorch with its backend ccl, torch_ccl, IPEX.

    From torch 2.8 the backend is `xccl`, part of torch itself. The bindings' last release is for 2.8 and the frameworks of Aurora
    dropped them in 2025.2; without them `ccl` is an unknown backend (an error). Intel Extension for PyTorch is retired, and each release
    imports beside its own torch alone. An import that may fail quietly is not told, nor one for a torch known to be older.

    Bad `train.py`:

        import oneccl_bindings_for_pytorch
        import torch
        import torch.distributed as dist

        torch.xpu.set_device(0)
        dist.init_process_group(backend="ccl")

    Good `train.py`:

        import torch
        import torch.distributed as dist

        torch.xpu.set_device(0)
        dist.init_process_group(backend="xccl")
    """
    if program.context.older("torch", "2.8"):
        return
    bound = program.module.imports_any("oneccl_bindings_for_pytorch", "torch_ccl", "oneccl_bind_pt")
    told: set[str] = set()
    for name, node, place in program.module.imports:
        root = name.split(".")[0]
        if place.tried or place.guards or root in told:
            continue
        told.add(root)
        if root in ("oneccl_bindings_for_pytorch", "torch_ccl", "oneccl_bind_pt"):
            yield Hit(f"import {root}: its last release is for torch 2.8; torch has xccl itself", program.at(node), root)
        elif root == "intel_extension_for_pytorch":
            yield Hit(
                f"import {root}: retired, and each release imports beside its own torch alone",
                program.at(node),
                root,
                severity=Severity.INFO,
            )
    for call in inits(program):
        if backend_of(program, call) in ("ccl", "xpu:ccl", "cpu:gloo,xpu:ccl") and not call.place.guards:
            severity = Severity.WARNING if bound or call.place.tried else Severity.ERROR
            why = "the bindings' backend" if bound else "unknown without oneccl_bindings_for_pytorch"
            yield Hit(f"backend ccl is {why}: torch's own is xccl", program.at(call.node), "backend", severity=severity)


@rule("SRC011", Severity.ERROR, Program, fails_at="engine start", checked="run", source="torch-2.13.0-distributed")
def distributed_call_torch_refuses(program: Program) -> Iterator[Hit]:
    """Arguments that torch refuses when the process group is made or the model wrapped.

    `timeout` is a datetime.timedelta, not a number (also in InitProcessGroupKwargs). DDP takes one device in `device_ids`. FSDP1 takes
    `MixedPrecision` and `CPUOffload` objects, not text and True. torch.compile() knows four modes, spelt with hyphens, and takes either a
    mode or options.

    Bad `train.py`:

        import torch.distributed as dist

        dist.init_process_group("nccl", timeout=1800)

    Good `train.py`:

        from datetime import timedelta
        import torch.distributed as dist

        dist.init_process_group("nccl", timeout=timedelta(seconds=1800))
    """
    for call in program.calls:
        if call.of("torch", "init_process_group", "new_group") or call.of("accelerate", "InitProcessGroupKwargs"):
            value = program.value(call.argument("timeout"))
            if isinstance(value, (int, float, str)) and not isinstance(value, bool):
                yield Hit(f"timeout {value!r} is no datetime.timedelta", program.at(call.node), "timeout")
        elif call.of("torch", "DistributedDataParallel"):
            ids = program.value(call.argument("device_ids", 1))
            node = call.argument("device_ids", 1)
            count = len(ids) if isinstance(ids, list) else len(node.elts) if isinstance(node, ast.List) else 0
            if count > 1:
                yield Hit(f"device_ids of {count} devices: one rank has one device", program.at(call.node), "device_ids")
        elif call.of("torch", "FullyShardedDataParallel"):
            yield from _of_fsdp(program, call)
        elif call.name == "torch.compile":
            yield from _of_compile(program, call)


def _of_fsdp(program: Program, call: Call) -> Iterator[Hit]:
    for name, kind in (("mixed_precision", "MixedPrecision(...)"), ("cpu_offload", "CPUOffload(offload_params=True)")):
        value: Any = program.value(call.argument(name))
        dtype = isinstance(value, Symbol) and value.name in ("torch.bfloat16", "torch.float16", "torch.float32")
        if dtype or value is True or (isinstance(value, str) and value):
            yield Hit(f"{name} {text_of(value)}: FSDP takes {kind}", program.at(call.node), name)


def _of_compile(program: Program, call: Call) -> Iterator[Hit]:
    modes = ("default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
    mode = program.value(call.argument("mode"))
    if isinstance(mode, str) and mode not in modes:
        yield Hit(f"mode {mode!r} is none of {', '.join(modes)}", program.at(call.node), "mode")
    elif isinstance(mode, str) and (options := call.argument("options")) is not None and program.value(options) is not None:
        yield Hit("mode and options: torch.compile() takes one of them", program.at(call.node), "mode")
