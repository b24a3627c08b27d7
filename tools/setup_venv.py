"""Create or mend a virtual environment and install what one make target needs (standard library only).

usage: python3 tools/setup_venv.py FOLDER EXTRAS       for instance: .venv run,test

Nothing happens while the folder's stamp fits. An interrupted run leaves an empty stamp, and the next one begins anew.
TORCH_INDEX names the package index for torch alone. This file parses on any Python 3, so that an old one gets a clear line.
"""

import hashlib
import os
import shutil
import site
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PIP = ["-m", "pip", "--disable-pip-version-check", "install"]
TORCH = "from torch.distributed.fsdp import fully_shard"
VERSION = ".".join(map(str, sys.version_info[:2]))
NEWER = ("python3.14", "python3.13", "python3.12", "python3.11", "python3.10")


def main(folder: str, extras: str) -> None:
    refuse_old_python()
    python = os.path.join(folder, "bin", "python")
    stamp = os.path.join(folder, "installed")
    wanted = digest(folder, extras)
    if read(stamp) == wanted and works(python, "import yaml"):
        return
    interrupted = os.path.exists(stamp) and not read(stamp)
    needs_torch = "run" in extras.split(",")
    shared = needs_torch and os.path.realpath(sys.prefix) != os.path.realpath(folder) and works(sys.executable, TORCH)
    if interrupted or not works(python, f"import pip, sys; assert sys.version == {sys.version!r}"):
        create(folder, shared)
    write(stamp, "")
    own_torch = needs_torch and not (shared and works(python, TORCH))
    if own_torch:
        install_torch(python)
    say(f"installing the packages of [{extras}]")
    install(python, f"[{extras}]", ["--quiet", "--constraint", constraints(folder, own_torch), "--editable", f"{ROOT}[{extras}]"])
    write(stamp, wanted)


def refuse_old_python() -> None:
    if sys.version_info >= (3, 10):  # noqa: UP036
        return
    found = [name for name in NEWER if shutil.which(name)]
    hint = f"make demo PYTHON={found[0]}" if found else "install one, then name it: make demo PYTHON=python3.12"
    stop(f"this is Python {VERSION}, and Python 3.10 or newer is needed; {hint}")


def digest(folder: str, extras: str) -> str:
    """What the installation depends on: our files, this Python, the place, the index."""
    parts = [os.path.abspath(folder), extras, os.path.realpath(base_python()), sys.version, os.environ.get("TORCH_INDEX", "")]
    parts += [read(os.path.join(ROOT, name)) for name in ("pyproject.toml", "constraints.txt", "tools/setup_venv.py")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def base_python() -> str:
    """The interpreter outside any active virtual environment, which may be the very one to be mended."""
    return getattr(sys, "_base_executable", None) or sys.executable


def create(folder: str, shared: bool) -> None:
    if not works(base_python(), "import venv, ensurepip"):
        stop(f"this Python makes no virtual environments; on Debian or Ubuntu: apt install python{VERSION}-venv, then run make again")
    say(f"creating {folder}{', on top of this Python, whose torch is used' if shared else ''}")
    argv = [base_python(), "-m", "venv", "--clear", folder, *(["--system-site-packages"] if shared else [])]
    if subprocess.call(argv):
        stop(f"python3 -m venv {folder} failed; its own words stand above")
    if shared and sys.prefix != sys.base_prefix:  # an active environment's packages are no system packages: name their folder
        outer = "".join(path + "\n" for path in site.getsitepackages() if path.startswith(sys.prefix))
        write(os.path.join(folder, "lib", f"python{VERSION}", "site-packages", "outer.pth"), outer)


def install_torch(python: str) -> None:
    pin = next(line.strip() for line in read(os.path.join(ROOT, "constraints.txt")).splitlines() if line.startswith("torch=="))
    if works(python, f"import torch; assert torch.__version__.split('+')[0] == '{pin[7:]}'"):
        return
    index = os.environ.get("TORCH_INDEX")
    say(f"this Python has no torch that can shard: downloading {pin} from {index or 'the index that pip uses'}")
    if not index and sys.platform == "linux" and os.uname().machine == "x86_64":
        say("a CPU wheel is about 200 MB; PyPI's wheel for Linux x86-64 brings CUDA packages of several GB.")
        say("To get the small one, press Ctrl-C and name an index of CPU wheels: make demo TORCH_INDEX=...")
    else:
        say("a CPU wheel is about 200 MB")
    install(python, pin, [pin, *(["--index-url", index] if index else [])])


def constraints(folder: str, own_torch: bool) -> str:
    """The constraints file; without the torch line where this Python's own torch is used."""
    path = os.path.join(ROOT, "constraints.txt")
    if own_torch:
        return path
    copy = os.path.join(folder, "constraints.txt")
    write(copy, "".join(line for line in read(path).splitlines(True) if not line.startswith("torch==")))
    return copy


def install(python: str, what: str, arguments: "list[str]") -> None:
    if subprocess.call([python, *PIP, *arguments]):
        stop(f"pip could not install {what}; its own words stand above; mend that and run make again")


def works(python: str, code: str) -> bool:
    """Whether this interpreter exists and runs `code`."""
    try:
        return subprocess.call([python, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def say(line: str) -> None:
    print("setup: " + line, flush=True)


def stop(line: str) -> None:
    sys.exit("setup: " + line)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except KeyboardInterrupt:
        stop("interrupted; make again begins anew")
