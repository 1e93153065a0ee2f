# Two commands for a newcomer: `make demo`, `make test`. Both create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := build/demo
SCORECARD := docs/scorecard

.PHONY: demo test replay check assembled docs slow bench speed scorecard clean

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed
	mkdir -p $(OUT)
	$(BIN)/npusim run conv2d_backprop_filter --device ascend910 --layer resnet50/res4_3x3 --batch 2 \
	  --check --trace $(OUT)/trace.json --plot $(OUT)/timeline.png --report $(OUT)/report.html

test: $(VENV)/.installed
	$(BIN)/python -m pytest

slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

# UPDATE=1 writes the digests anew: for changes that are meant to move them.
replay: $(VENV)/.installed
	$(BIN)/python -m pytest tests/replay $(if $(UPDATE),--update-replay -k anew)

check: $(VENV)/.installed assembled
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The package as a wheel has it, with the kernels inside, for tools that do not run code.
assembled:
	rm -rf build/types && mkdir -p build/types/npusim
	for part in npusim/*; do ln -s ../../../$$part build/types/$$part; done
	ln -sfn ../../../kernels build/types/npusim/kernels && rm build/types/npusim/kernels.py

docs: $(VENV)/.docs assembled
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

bench: $(VENV)/.installed
	$(BIN)/python -m tests.bench

# What docs/model/speed.md shows, measured anew on this machine.
speed: $(VENV)/.installed
	$(BIN)/python -m tests.bench --json > docs/model/speed.json
	$(BIN)/python -m tests.documents speed speeds

scorecard: $(VENV)/.installed
	mkdir -p $(SCORECARD)
	$(BIN)/npusim validate --leave-one-out --html $(SCORECARD)/scorecard.html \
	  --plot $(SCORECARD)/scorecard.png > $(SCORECARD)/scorecard.txt
	$(BIN)/python -m tests.documents errors 'errors in short' busy

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
