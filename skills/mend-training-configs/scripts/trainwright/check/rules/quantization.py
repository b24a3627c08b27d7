# helpers/trainwright/check/rules/quantization.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.subject import Quantization
from trainwright.emit.accelerate_file import nearest, shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_DTYPES = ("fp32", "fp16", "bf16", "float32", "float16", "bfloat16", "torch.float32", "torch.float16", "torch.bfloat16")


@rule(
    "QNT001",
    Severity.ERROR,
    Quantization,
    fails_at="engine start",
    checked="run",
    source="accelerate-1.15.0-deepspeed",
    covers=("BNB-BOTH",),
)
def quantization_refused(config: Quantization) -> Iterator[Hit]:
    """A quantization config that its class refuses: 4 and 8 bits together, or a name that it does not have."""
    document = config.document
    if document.get("load_in_4bit") is True and document.get("load_in_8bit") is True:
        fix = Fix({"load_in_8bit": False}, note="or load_in_4bit")
        yield Hit("load_in_8bit together with load_in_4bit: one of them", document.at("load_in_8bit"), "load_in_8bit", fix)
    for key, choices in (("bnb_4bit_quant_type", ("nf4", "fp4")), ("bnb_4bit_compute_dtype", _DTYPES)):
        value = document.get(key)
        if value is not None and str(value) not in choices:
            near = nearest(value, choices, 0.5)
            message = f"{key} {shown(value)} is not one of {', '.join(choices[:6])}"
            yield Hit(message, document.at(key), key, Fix({key: near}) if near else None)
