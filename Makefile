# Two commands for a newcomer: `make demo`, `make test`. Both create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := build/demo
SCORECARD := docs/scorecard
# COVERAGE=1 adds the share of lines that were run; it doubles the time.
COVER := $(if $(COVERAGE),--cov --cov-report=term:skip-covered)
# What is compiled for the tests, and a file that says so.
COMPILED := $(wildcard npusim/machine/timing/fast/*.py) \
  kernels/estimate/pipeline_core.py kernels/estimate/course_core.py kernels/estimate/work.py
ENGINE := build/engine/made
# Tests that say most in little time: the machine and its data. Operators choose tilings by compiled
# estimates, so their tests are not among them.
QUICK := tests/base tests/machine/device tests/machine/isa tests/machine/numerics \
  tests/machine/program tests/machine/timing/test_timing_by_hand.py \
  tests/machine/timing/test_fabric.py tests/machine/timing/test_l2.py tests/problem/layouts \
  tests/problem/test_reference.py tests/workloads tests/test_architecture.py

.PHONY: demo engine quick test minima newest mutants replay gate check types size docs slow release bench speed steps scorecard clean

$(VENV)/.installed: pyproject.toml
	@echo "npusim and what it needs go into $(VENV): once, half a minute to two; nothing is said meanwhile"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --quiet --editable '.[dev]'
	@$(BIN)/python -m compileall -q npusim  # else every start compiles it where Python writes no bytecode
	@touch $@

demo: $(VENV)/.installed
	mkdir -p $(OUT)
	$(BIN)/npusim run conv2d_backprop_filter --device ascend910 --layer resnet50/res4_3x3 --batch 2 \
	  --check --trace $(OUT)/trace.json --plot $(OUT)/timeline.png --report $(OUT)/report.html

# The engine compiled ahead of time, beside its sources, as a wheel has it; needs a C compiler.
engine: $(VENV)/.installed
	$(BIN)/python -m npusim.ahead

# The engine of the tests, compiled once; where that fails each of their processes compiles.
$(ENGINE): $(VENV)/.installed $(COMPILED)
	mkdir -p $(@D)
	rm -f $(@D)/engine-*.so  # of other sources
	-$(BIN)/python -m npusim.ahead $(@D)
	touch $@

# Without the compiled engine, so that nothing waits for a compiler.
quick: $(VENV)/.installed
	$(BIN)/python -m pytest --quick --ignore=tests/machine/program/test_recost.py $(COVER) $(QUICK)

test: $(ENGINE)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile $(COVER)

slow: $(ENGINE)
	$(BIN)/python -m pytest --slow

# The oldest Python and the oldest of every dependency that pyproject.toml declares.
OLDEST ?= python3.10
minima:
	rm -rf build/minima && $(OLDEST) -m venv build/minima
	sed -n '/^dependencies/,/^]/s/^ *"\(.*\)>=\(.*\)",$$/\1==\2/p' pyproject.toml > build/minima/pins.txt
	build/minima/bin/python -m pip install --quiet --constraint build/minima/pins.txt --editable '.[dev]'
	NPUSIM_ENGINE=numba build/minima/bin/python -m pytest --numprocesses auto --dist loadfile -o filterwarnings=ignore

# The newest Python and the newest of every dependency.
NEWEST ?= python3.13
newest:
	rm -rf build/newest && $(NEWEST) -m venv build/newest
	build/newest/bin/python -m pip install --quiet --upgrade --editable '.[dev]'
	NPUSIM_ENGINE=numba build/newest/bin/python -m pytest --numprocesses auto --dist loadfile

# Small changes to the code that some test should notice; PACKAGES="machine/isa problem/limits", COUNT=40, SEED=1.
mutants: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[mutants]'
	$(BIN)/python -m tools.mutants $(PACKAGES) --count $(or $(COUNT),20) --seed $(or $(SEED),0)

# UPDATE=1 writes the digests anew: for changes that are meant to move them.
replay: $(VENV)/.installed
	$(BIN)/python -m pytest tests/replay -m replay $(if $(UPDATE),--update-replay -k anew)
	$(BIN)/python -m pytest tests/problem/limits tests/cli/test_refused_lines.py $(if $(UPDATE),--update-replay)

# The kernels against their times in tests/data/gate.json; UPDATE=1 accepts those there are now.
gate: $(ENGINE)
	NPUSIM_ENGINE=$$(ls $(CURDIR)/build/engine/engine-*.so | head -1) \
	  $(BIN)/npusim gate kernels $(if $(UPDATE),--save,--against) tests/data/gate.json

check: $(VENV)/.installed types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.installed
	$(BIN)/mypy

# How the code reads, by room; AGAINST=REVISION shows the difference to another than the last release.
size: $(VENV)/.installed
	$(BIN)/python -m tools.size $(if $(AGAINST),--against $(AGAINST))

docs: $(VENV)/.docs
	$(BIN)/python -m tools.command_line docs/reference/command-line.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

# The wheel and the source archive of a release, and the wheel tried in an environment of its own.
release: $(VENV)/.installed
	rm -rf dist build/release
	@echo "both archives, with the engine compiled for every kind of processor: two to three minutes"
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install dist/*.whl
	cd build/release && bin/npusim run matmul --device tiny --m 64 --k 64 --n 64 --check
	cd build/release && bin/npusim devices && bin/python -c "import npusim.kernels.matmul.matmul"

bench: $(VENV)/.installed
	$(BIN)/python -m tools.bench
	$(BIN)/python -m tools.bench.history $(if $(RELEASE),--release $(RELEASE))

# What docs/model/speed.md shows, measured anew on this machine.
speed: $(VENV)/.installed
	$(BIN)/python -m tools.bench --json > docs/model/speed.json
	$(BIN)/python -m tests.documents speed speeds

# The training steps that others measured, simulated anew: minutes.
steps: $(VENV)/.installed
	mkdir -p build
	$(BIN)/npusim validate --networks --json > build/steps.json && mv build/steps.json docs/model/steps.json
	$(BIN)/python -m tests.documents.kernels_910
	$(BIN)/python -m tools.scorecard.evidence
	$(BIN)/python -m tools.scorecard.coverage > $(SCORECARD)/coverage.txt
	$(BIN)/python -m tests.documents errors 'short errors' ranges steps "parts of a step" "kernels of a 910"

scorecard: $(VENV)/.installed
	mkdir -p $(SCORECARD)
	$(BIN)/python -m tools.scorecard --evidence --html $(SCORECARD)/scorecard.html \
	  --plot $(SCORECARD)/scorecard.png > $(SCORECARD)/scorecard.txt
	$(BIN)/python -m tools.scorecard.mechanisms --evidence > $(SCORECARD)/mechanisms.txt
	$(BIN)/python -m tools.scorecard.evidence
	$(BIN)/python -m tools.scorecard.coverage > $(SCORECARD)/coverage.txt
	$(BIN)/python -m tests.documents errors 'short errors' 'errors by size' ranges choices \
	  'other errors' busy

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f npusim/machine/timing/fast/engine-*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
