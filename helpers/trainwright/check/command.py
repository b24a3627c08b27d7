"""`trainwright check PATH...`: are these config files right, before a job is started with them."""

from __future__ import annotations

import argparse

from trainwright.check.judge import judge
from trainwright.check.subject import DEVICES, Context
from trainwright.model import load_model
from trainwright.report import Report

EXAMPLES = """examples:
  trainwright check accelerate.yaml --world-size 4 --model config.json --device cuda
  trainwright check configs/*.yaml --format json --fail-on warning"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a config file of Accelerate (YAML or JSON); - reads standard input")
    parser.add_argument("--world-size", type=_ranks, metavar="N", help="ranks of the job, on all machines together")
    parser.add_argument("--model", metavar="CONFIG", help="the model's Hugging Face config.json")
    parser.add_argument("--device", choices=DEVICES, help="what the job's machines compute on")


def run(options: argparse.Namespace) -> Report:
    model = load_model(options.model) if options.model else None
    return judge(options.paths, Context(options.world_size, model, options.device))


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 12 and 0 < int(text) <= 10**7):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, 1 or more")
    return int(text)
