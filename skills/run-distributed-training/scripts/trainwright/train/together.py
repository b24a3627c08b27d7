# train/together.py without its comments
from __future__ import annotations

import errno
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from trainwright.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Failed(Exception):

    def __init__(self, doing: str, problems: Mapping[int, BaseException]) -> None:
        self.full = any(_full(problem) for problem in problems.values())
        rank, first = min(problems.items(), key=lambda row: (not _full(row[1]), row[0]))
        others = f" (and {len(problems) - 1} more ranks)" if len(problems) > 1 else ""
        told = str(first) if isinstance(first, UserError) else f"rank {rank}{others} could not {doing}: {_words(first)}"
        super().__init__(told)


def together(doing: str, work: Callable[[], Any]) -> Any:
    result, problem = None, None
    try:
        result = work()
    except Exception as caught:
        problem = caught
    problems: list[Exception | None] = [problem]
    if dist.is_initialized():
        problems = [None] * world_size()
        dist.all_gather_object(problems, _portable(problem))
    failures = {rank: caught for rank, caught in enumerate(problems) if caught is not None}
    if failures:
        raise Failed(doing, failures)
    return result


def _portable(problem: Exception | None) -> Exception | None:
    if problem is None or isinstance(problem, OSError):
        return problem and OSError(problem.errno, problem.strerror or str(problem))
    return UserError(str(problem)) if isinstance(problem, UserError) else RuntimeError(_words(problem))


@contextmanager
def one_error(doing: str) -> Iterator[None]:
    try:
        yield
    except CheckpointException as problem:
        raise Failed(doing, {rank: failure[0] for rank, failure in problem.failures.items()}) from None
    except (OSError, RuntimeError, ValueError, KeyError, AssertionError) as problem:
        raise Failed(doing, {this_rank(): problem}) from None


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def system_error(problem: BaseException) -> OSError | None:
    seen: BaseException | None = problem
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _full(problem: BaseException) -> bool:
    cause = system_error(problem)
    return cause is not None and cause.errno in FULL


def _words(problem: BaseException) -> str:
    if type(problem).__name__ == "UnpicklingError":
        return "what lies there is more than tensors, or damaged"
    cause = system_error(problem)
    return str(cause.strerror) if cause is not None else f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"


def this_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
