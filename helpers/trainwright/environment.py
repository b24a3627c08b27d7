"""An environment that jobs start in, as rules judge it: what doctor saw here, or what was recorded elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from trainwright.errors import UserError

SCHEMA = "trainwright/environment/1"
TORCH_STATES = ("unknown", "absent", "ok", "broken", "ended", "unfinished")


@dataclass(frozen=True, slots=True)
class Torch:
    """PyTorch in the job's interpreter.

    `state`: absent; ok (it imports); broken (importing raises `error`); ended (importing ends the process); unfinished (it took
    longer than it was given); unknown. `cuda`, `hip`, `xpu` are what it is built for, read without importing it, None where not.
    """

    state: str = "unknown"
    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    error: str | None = None
    backends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as torch addresses it; `kind` is cuda, xpu or another of torch's."""

    kind: str
    name: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Unmet:
    """A requirement that an installed package states and the installed version does not meet (None: not installed)."""

    package: str
    needs: str
    found: str | None


@dataclass(frozen=True, slots=True)
class Environment:
    """Facts of a place where jobs start; what is unknown is None, empty or left out, and no rule judges it.

    `variables` holds the known environment variables that are set; `versions` the installed distributions by their lower-case
    names with hyphens; `seen` the makers whose devices the kernel shows (nvidia, amd, intel, habana); `role` is login, compute,
    batch or workstation; `shadows` are files in the working folder that are called as standard modules.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    torch: Torch = field(default_factory=Torch)
    devices: tuple[Device, ...] = ()
    seen: tuple[str, ...] = ()
    nvidia_driver: str | None = None
    unmet: tuple[Unmet, ...] = ()
    user_packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    site: str | None = None
    role: str | None = None
    scheduler: str | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    processors: int | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    shadows: tuple[str, ...] = ()

    def has(self, *names: str) -> bool:
        return any(name in self.versions for name in names)

    def at_least(self, name: str, *wanted: int) -> bool | None:
        """Whether a distribution is that version or newer; None where it is not installed or its version cannot be read."""
        found = release(self.versions.get(name, ""))
        return None if not found else found[: len(wanted)] >= wanted

    def uses(self, kind: str) -> bool:
        """Whether jobs here compute on `kind`: a device or its maker is seen, or torch is built for it."""
        maker = {"xpu": "intel", "cuda": "nvidia", "hpu": "habana"}.get(kind, "")
        built = {"xpu": self.torch.xpu, "cuda": self.torch.cuda}.get(kind)
        return any(device.kind == kind for device in self.devices) or maker in self.seen or bool(built and not self.seen)

    @property
    def aurora(self) -> bool:
        """Aurora, or Sunspot, which is built alike."""
        return self.site in ("aurora", "sunspot")

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


def release(version: str) -> tuple[int, ...]:
    """ "2.10.0a0+git449b176" -> (2, 10, 0); () where no number leads."""
    found = re.match(r"\d{1,6}(?:\.\d{1,6})*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def distribution(name: str) -> str:
    """The name that packaging compares by: "oneccl_bind.pt" -> "oneccl-bind-pt"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def from_json(row: Mapping[str, Any], where: str) -> Environment:
    """An environment that was recorded; keys may be missing. Raises UserError for one of another shape or with keys unknown here."""
    known = {one.name for one in fields(Environment)}
    body = {key: value for key, value in row.items() if key != "schema"}
    if row.get("schema", SCHEMA) != SCHEMA or set(body) - known:
        strange = ", ".join(sorted(map(str, set(body) - known)))[:200] or f"schema {str(row.get('schema'))[:80]!r}"
        raise UserError(f"{where} is no recorded environment ({strange}); doctor --report writes one")
    try:
        return _built(body)
    except (TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{where} is no recorded environment: {str(problem)[:200]}") from None


def _built(body: dict[str, Any]) -> Environment:
    made: dict[str, Any] = {key: value for key, value in body.items() if value is not None}
    for key, kind in (("devices", Device), ("unmet", Unmet)):
        made[key] = tuple(kind(**one) for one in body.get(key) or ())
    torch = dict(body.get("torch") or {})
    made["torch"] = Torch(**{**torch, "backends": tuple(torch.get("backends") or ())})
    for key in ("seen", "user_packages", "modules", "shadows"):
        made[key] = tuple(str(one) for one in body.get(key) or ())
    made["variables"] = {str(key): str(value) for key, value in (body.get("variables") or {}).items()}
    made["versions"] = {distribution(str(key)): str(value) for key, value in (body.get("versions") or {}).items()}
    return _sound(Environment(**made))


def _sound(found: Environment) -> Environment:
    """`found`, whose numbers are numbers and whose words are words; raises ValueError."""
    counts = [getattr(found, name) for name in ("nodes", "ranks_per_node", "processors", "memory_bytes", "shm_bytes")]
    counts += [device.memory_bytes for device in found.devices]
    if not all(value is None or (type(value) is int and 0 <= value < 2**63) for value in counts):
        raise ValueError("a count is no whole number from 0")
    torch = found.torch
    may_lack = [found.python, found.nvidia_driver, found.site, found.role, found.scheduler, *(gap.found for gap in found.unmet)]
    may_lack += [torch.version, torch.error, torch.cuda, torch.hip, torch.xpu]
    words = [text for gap in found.unmet for text in (gap.package, gap.needs)]
    words += [*torch.backends, *(text for device in found.devices for text in (device.kind, device.name))]
    if not all(isinstance(one, str) for one in (*words, *(text for text in may_lack if text is not None))):
        raise ValueError("a text is expected where another value stands")
    if torch.state not in TORCH_STATES:
        raise ValueError(f"torch.state is none of {', '.join(TORCH_STATES)}")
    return found
