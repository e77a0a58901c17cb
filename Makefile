# Two commands do everything on a fresh machine with Python 3.11+ and a C compiler: `make tune` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SHAPES ?= dynamic
OUT ?= pack
# TORCH=1 runs the tests of the torch door, too. An index that has torch's CPU build gives that one for this version.
TORCH ?=
TORCH_VERSION ?= torch==2.13.0
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Containers often forbid bytecode; every run would compile and rewrite the plugins of pytest anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: tune tune-model test test-device test-long test-slow test-all check docs bench fleet-demo gpu-bundle links clean

# A zip unpacked by a tool that knows no links leaves text files in their place.
links:
	@for d in microkernels transfer hw_profiles; do [ -d haotuner/$$d ] || ln -sfn ../$$d haotuner/$$d; done

# Create the environment once, again whenever pyproject.toml changes; a half-made one is not taken for whole.
$(VENV)/.installed: pyproject.toml | links
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "haotuner needs Python 3.11 or newer; found $$($(PYTHON) --version). Set PYTHON=..." >&2; exit 4; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -e '.[tune,dev]'
	@touch $@

$(VENV)/.torch: $(VENV)/.installed
	$(PIP) '$(TORCH_VERSION)' || $(PIP) torch
	@touch $@

tune: $(VENV)/.installed
	$(BIN)/haotuner tune --shapes $(SHAPES) --out $(OUT)

# A text recogniser out of a wheel: tuned, then raced against ONNX Runtime and OpenVINO. MODEL_OUT and MODEL_BUDGET as you like.
# On a busy machine some op may have had no turn: the pack is whole, tune exits with 3, and the race goes on.
MODEL_OUT ?= pack-model
MODEL_BUDGET ?= 420s
MODEL_NAME = PP-OCRv6_rec_small
MODEL_FILE = $$($(BIN)/python -c 'import importlib.util as u; print(u.find_spec("rapidocr").submodule_search_locations[0])')/models/$(MODEL_NAME).onnx
tune-model: $(VENV)/.installed
	$(PIP) -e '.[models]' onnxruntime openvino
	$(PIP) --no-deps rapidocr==3.10.0
	$(BIN)/haotuner tune "$(MODEL_FILE)" --shapes 'x=1..6x3x48x32..960' --budget $(MODEL_BUDGET) --out $(MODEL_OUT) || [ $$? -eq 3 ]
	$(BIN)/haotuner bench $(MODEL_OUT) --model $(MODEL_NAME) --file "$(MODEL_FILE)" --shapes 'DynamicDimension_0=1..6;DynamicDimension_1=32..960'

# Two processes (pytest-xdist); a file stays in one, so that its fixtures are made once. The last line says what was skipped.
# What a change to the CPU side can break. test-device: the CUDA side without a GPU. test-long: further variants.
test: TESTS ?= not slow and not long and not device
test-device: TESTS ?= device and not slow
test-long: TESTS ?= long and not slow and not device
test test-device test-long: $(VENV)/.installed $(if $(TORCH),$(VENV)/.torch)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "$(TESTS)"

# Slow tests: every variant, fuzzers, soaks. PART=2/4 is one of four parts that take about as long as one another, by whole
# files and by tests/slow_seconds.json. A part that takes longer than SLOW_LIMIT is ended, and make fails.
PART ?= 1/1
SLOW_LIMIT ?= $(if $(filter 1/1,$(PART)),90m,25m)
test-slow: $(VENV)/.installed $(if $(TORCH),$(VENV)/.torch)
	timeout --signal=INT --kill-after=60 $(SLOW_LIMIT) $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder \
	    -m slow --part $(PART) || { code=$$?; [ $$code -ne 124 ] || echo "part $(PART) of the slow tests took longer than $(SLOW_LIMIT)" >&2; exit $$code; }

# Everything: the three tiers in one run, then the slow tests, part by part.
SLOW_PARTS = 1/4 2/4 3/4 4/4
test-all:
	$(MAKE) test TESTS="not slow"
	set -e; for part in $(SLOW_PARTS); do $(MAKE) test-slow PART=$$part; done

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, into build/site. Strict: a broken link or an unknown name in a reference ends it.
$(VENV)/.docs: $(VENV)/.installed
	$(PIP) -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --quiet

# The peers are large: only the benchmark brings them.
bench: $(VENV)/.installed
	$(PIP) -e '.[bench]'
	$(BIN)/haotuner bench $(OUT)

# Two nodes, PostgreSQL, a node that is killed, packs of two devices and the picture of the report. Needs Chromium and PostgreSQL.
fleet-demo: $(VENV)/.installed
	$(PIP) -e '.[fleet,report]'
	$(BIN)/python -m tests.fleet.demo --out build/fleet-demo

# One archive that a bare GPU machine can run; needs nvcc or NVRTC here, no GPU. Some 20 minutes on two cores the first time.
gpu-bundle: $(VENV)/.installed
	$(BIN)/python -m tests.bench.gpu_bundle build --out build/gpu-bundle.tar.xz

clean:
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
