# Two commands are all a user needs: `make demo` and `make test`. PYTHON=python3.12 chooses the interpreter, TORCH_INDEX=URL the index for torch.
PYTHON ?= python3
VENV = .venv/bin/python
ARGS ?=

.PHONY: demo test test-long gates lint sync bench-check bench-isoflop env env-gates

demo: env
	$(VENV) scripts/demo.py $(ARGS)

test: env
	$(VENV) -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

test-long: env
	$(VENV) -m pytest -m long $(ARGS)

gates: env env-gates
	$(VENV) -m pytest -m gates $(ARGS)

lint: env
	$(VENV) -m ruff check
	$(VENV) -m ruff format --check
	$(VENV) -m mypy

bench-check: env
	PYTHONPATH=helpers OMP_NUM_THREADS=1 $(VENV) tools/bench_check.py $(ARGS)

bench-isoflop: env
	PYTHONPATH=helpers OMP_NUM_THREADS=1 $(VENV) tools/bench_isoflop.py $(ARGS)

sync: env
	$(VENV) scripts/skills.py sync

env:
	@$(PYTHON) tools/setup_venv.py .venv run,test

env-gates:
	@$(PYTHON) tools/setup_venv.py .venv-gates gates
