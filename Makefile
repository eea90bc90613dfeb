# Every target works from a clean clone: the virtual environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = false

# The oldest versions that the metadata allows, in an environment of their own.
OLDEST := .venv-oldest
OLDEST_STAMP := $(OLDEST)/.installed
# What these versions do not have (trl, wandb) is tested with the newest only.
OLDEST_TESTS := tests/contracts tests/ormas_hf tests/ormas_lightning tests/ormas_mlflow \
	$(addprefix tests/ormas_core/test_,lanes.py monitor.py monitor_checks.py replay.py resume.py)
OLDEST_LEFT_OUT := --ignore tests/ormas_hf/test_hf_ecosystem.py --deselect \
	tests/ormas_lightning/test_lightning_loggers.py::test_wandb_gets_them_offline

.PHONY: demo test test-oldest check format bench fuzz fuzz-mutants fuzz-record clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install --quiet -c constraints.txt --group dev -e '.[all]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/ormas-monitor demo --out ormas_demo --overwrite

test: $(STAMP)
	$(BIN)/python -m pytest

$(OLDEST_STAMP): pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip
	$(OLDEST)/bin/python -m pip install --quiet -c constraints-oldest.txt \
		hypothesis in-toto-attestation peft pytest pytest-timeout tensorboard -e '.[all]'
	touch $(OLDEST_STAMP)

# Warnings are no errors there: old versions warn of what newer ones have changed.
test-oldest: $(OLDEST_STAMP)
	$(OLDEST)/bin/python -m pytest -o filterwarnings=default $(OLDEST_LEFT_OUT) $(OLDEST_TESTS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python tests/bench/run.py
	PYTHONPATH=.:tests $(BIN)/python tests/bench/verify.py

# Networks that `fuzz` proves and attacks: `make fuzz N=50000`.
fuzz: N = 10000
fuzz: $(STAMP)
	PYTHONPATH=.:tests $(BIN)/python -m fuzz.run $(N)

fuzz-mutants: $(STAMP)
	PYTHONPATH=.:tests $(BIN)/python -m fuzz.mutants

# How many mutated run folders `fuzz-record` verifies.
N ?= 20000

fuzz-record: $(STAMP)
	PYTHONPATH=.:tests $(BIN)/python tests/fuzz/record.py $(N)

clean:
	rm -rf $(VENV) $(OLDEST) build dist *.egg-info ormas_demo
