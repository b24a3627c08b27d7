# errors.py without its comments
from __future__ import annotations

import enum
import sys


class Exit(enum.IntEnum):

    OK = 0
    FINDINGS = 1
    USAGE = 2
    MISSING = 3
    FAILED = 4
    FAULT = 70
    INTERRUPTED = 130


class UserError(Exception):

    exit = Exit.USAGE
    rule = "USAGE"


class MissingPackageError(UserError):

    exit = Exit.MISSING
    rule = "MISSING"

    def __init__(self, package: str, purpose: str, requirement: str = "") -> None:
        pip = f"{sys.executable} -m pip install {requirement or package}"
        from trainwright.interpreters import same_command

        other = same_command({"PyYAML": "yaml"}.get(package, package))
        hint = f"run it with a Python that has it: {other}" if other else f"install it: {pip}"
        super().__init__(f"{purpose} needs the package {package}, which {sys.executable} does not have; {hint}")


class JobError(UserError):

    exit = Exit.FAILED
    rule = "JOB"
