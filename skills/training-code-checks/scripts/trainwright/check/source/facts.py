# check/source/facts.py without its comments
from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainwright.check.source.module import Call, Module
from trainwright.check.source.values import Symbol, known
from trainwright.document import Document, DocumentError, parse

_TRAINERS = tuple(f"{name}Trainer" for name in ("", "Seq2Seq", "SFT", "DPO", "PPO", "GRPO", "Reward", "KTO", "ORPO"))
_CONFIGS = ("SFTConfig", "DPOConfig", "GRPOConfig", "KTOConfig", "ORPOConfig", "RewardConfig")
ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", *_CONFIGS)


@dataclass(frozen=True, slots=True)
class Reference:

    target: Any
    reader: str
    node: ast.expr


def facts_of(module: Module) -> Iterator[tuple[str, Any]]:
    if (call := _only(module, "accelerate", "Accelerator")) is not None and not call.spread:
        steps = module.value(call.argument("gradient_accumulation_steps"))
        if type(steps) is int:
            yield "gradient_accumulation_steps", steps
    if module.called("transformers", *_TRAINERS) or module.called("trl", *_TRAINERS):
        yield "trainer", True
    elif module.called("accelerate", "Accelerator"):
        yield "trainer", False
    for package in ("transformers", "trl"):
        if (call := _only(module, package, *ARGUMENTS)) is not None and (values := literals(module, call)):
            yield "training_args", values
            break
    yield from _of_loading(module)
    yield from _of_optimizer(module)


def _of_loading(module: Module) -> Iterator[tuple[str, Any]]:
    for package, name in (("transformers", "BitsAndBytesConfig"), ("accelerate", "BnbQuantizationConfig")):
        if (call := _only(module, package, name)) is not None and (values := literals(module, call)):
            yield "quantization", {key: value.last if isinstance(value, Symbol) else value for key, value in values.items()}
    loads = [call for call in module.calls if call.last == "from_pretrained" and call.name.startswith(("transformers.", "peft."))]
    models = [call for call in loads if not call.place.guards and ("Model" in call.name or "For" in call.name)]
    if len(models) != 1:
        return
    placed, dtype = (module.value(models[0].argument(name)) for name in ("device_map", "torch_dtype"))
    if placed in ("auto", "balanced", "balanced_low_0", "sequential"):
        yield "device_map", placed
    if isinstance(dtype, Symbol) and dtype.name.startswith("torch."):
        yield "torch_dtype", dtype.last
    made = models[0].owner.rpartition(".")[2]
    if not made.startswith(("Auto", "Peft")):
        yield "model_class", made


def _of_optimizer(module: Module) -> Iterator[tuple[str, Any]]:
    for call in module.calls:
        if call.of("deepspeed", "initialize"):
            given = [call.argument("optimizer", 2)]
        elif call.on("accelerate", "Accelerator", "prepare"):
            given = list(call.node.args)
        else:
            continue
        for node in given:
            made = _maker(module, node)
            if made.startswith("torch.optim.") or made.endswith(".DummyOptim"):
                yield "optimizer", made.removesuffix("()")
                return


def _maker(module: Module, node: ast.expr | None) -> str:
    if not isinstance(node, ast.Name) or len(values := [v for v in module.bindings.get(node.id, []) if v is not None]) != 1:
        return ""
    return module.name_of(values[0].func) if isinstance(values[0], ast.Call) else ""


def _only(module: Module, package: str, *names: str) -> Call | None:
    calls = module.called(package, *names)
    return calls[0] if len(calls) == 1 and not calls[0].place.guards else None


def literals(module: Module, call: Call) -> dict[str, Any]:
    values = {name: module.value(node) for name, node in call.keywords.items()}
    return {name: value for name, value in values.items() if known(value)}


def references_of(module: Module) -> list[Reference]:
    found = []
    for call in module.calls:
        if call.of("deepspeed", "initialize"):
            rows = [("config", 7, "deepspeed"), ("config_params", 8, "deepspeed")]
        elif call.of("accelerate", "DeepSpeedPlugin"):
            rows = [("hf_ds_config", 0, "accelerate")]
        elif call.of("transformers", *ARGUMENTS) or call.of("trl", *ARGUMENTS):
            rows = [("deepspeed", -1, "transformers")]
        else:
            continue
        for name, position, reader in rows:
            node = call.argument(name, position if position >= 0 else None)
            value = module.value(node)
            if node is not None and ((isinstance(value, str) and value) or (isinstance(value, Mapping) and known(value))):
                found.append(Reference(value, reader, node))
    return found


def document_of(reference: Reference, text: str, path: str) -> Document:
    node, value = reference.node, _plain(reference.target)
    lines = text.split("\n")
    before = "\n" * (node.lineno - 1)
    if isinstance(node, ast.Dict) and node.end_lineno:
        body = lines[node.lineno - 1 : node.end_lineno]
        body[-1] = body[-1].encode()[: node.end_col_offset].decode(errors="replace")
        body[0] = " " * node.col_offset + body[0].encode()[node.col_offset :].decode(errors="replace")
        with suppress(DocumentError):
            document = parse(before + "\n".join(body), path, "yaml")
            if document.value == value:
                return document
    return Document(path, before + "{}", "yaml", value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Symbol) else value
