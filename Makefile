# Every target works in a fresh clone: it makes .venv first, and does nothing the second time.
#   make demo TORCH=2.9.1     another torch than the tested one
#   make demo PYTHON=python3.12
PYTHON ?= python3
TORCH  ?= $(shell sed -n 's/^torch==//p' constraints.txt)
BIN    := .venv/bin
# Two workers, one thread each: OpenMP threads that spin on two cores cost more than they give.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
WORKERS ?= 2

.PHONY: docs demo test test-cpus test-slow coverage clinic families faults audit lint format bench long-runs clean help
help:
	@echo "make demo | docs | test | test-cpus | test-slow | coverage | clinic | families | faults | audit | lint | format | bench | long-runs | clean   (TORCH=$(TORCH) PYTHON=$(PYTHON))"

# The stamps carry the torch version: another TORCH installs anew.
DEV    := .venv/.dev-$(TORCH)
BENCH  := .venv/.bench-$(TORCH)
RAY    := .venv/.ray-$(TORCH)

$(DEV): pyproject.toml constraints.txt tools/setup.sh
	@sh tools/setup.sh "$(PYTHON)" "$(TORCH)" dev
$(BENCH): $(DEV)
	@sh tools/setup.sh "$(PYTHON)" "$(TORCH)" bench
$(RAY): $(DEV)
	@sh tools/setup.sh "$(PYTHON)" "$(TORCH)" ray

demo: $(DEV)
	@$(BIN)/normlab demo --out runs/demo

test: $(DEV)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow"

# The same suite with the instructions of other processors: none in particular, AVX2 (also in MKL and oneDNN), all.
test-cpus: $(DEV)
	ATEN_CPU_CAPABILITY=default $(MAKE) test
	ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 $(MAKE) test
	$(MAKE) test

# Tests that take minutes, and those of Ray, which is installed for them alone.
RAY_TESTS := tests/experiments/executors/test_ray.py
test-slow: $(RAY)
	$(BIN)/python -m pytest -q $(RAY_TESTS)
	$(BIN)/python -m pytest -q -m slow --ignore=$(RAY_TESTS)

# Line coverage of the suite, room by room; what runs in processes of its own (workers, torchrun) does not count.
coverage: $(DEV)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" --cov=normlab --cov-report=json:.venv/coverage.json --cov-report=
	@$(BIN)/python tools/coverage_by_room.py .venv/coverage.json

# Faults planted in small trained models: what `diagnose` finds, misses, and accuses wrongly. CLINIC="--half open --json"
clinic: $(DEV)
	@$(BIN)/python -m tests.probes.clinic $(CLINIC)

# Every text model family of the installed transformers, built small and diagnosed; again what was refused: FAMILIES=--refused
families: $(DEV)
	@$(BIN)/python tools/families.py $(FAMILIES)

# Kills, signals, full disks, damaged files and fuzzed input; the table says what was tried, survived and lost.
# It goes on where it was stopped (build/faults.jsonl).   make faults HOURS=2   make faults WRITE=1: the table into the docs
faults: $(DEV)
	$(BIN)/python -m tools.faults $(if $(HOURS),--kills 1000000 --cases 100000 --minutes $$(( $(HOURS) * 60 ))) $(if $(WRITE),--write)

# Known weaknesses of the tested versions; needs the network, and says so where there is none.
audit: $(DEV)
	@$(BIN)/python tools/audit.py

# The documentation site: pages from the code and its data, tutorials executed, strict. It opens from build/site/index.html.
docs: $(DEV)
	$(BIN)/python -m tools.site

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The runs that take hours, in slices: stop it at any time, start it again, and it goes on. RUNS is where they are kept.
RUNS ?= runs/long
long-runs: $(DEV)
	$(BIN)/python tools/long_runs.py $(RUNS)

# make bench QUICK=1: few rounds, small shapes, below ten minutes. All that was found is one table, with the machine.
bench: $(BENCH)
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick) --table build/bench.md

clean:
	rm -rf .venv runs build dist .mypy_cache .ruff_cache
