# SPDX-License-Identifier: Apache-2.0
#
# These targets do everything from a fresh clone. Each installs and builds what it needs: system
# packages (apt), .venv with PyTorch, the libraries. scripts/dev.py does the work.
PYTHON ?= python3
# Arguments for pytest: make test-python ARGS="-k trainer -x"; for soaks: make soak ARGS="--minutes 60"
ARGS ?=

TASKS := build check demo demo-cuda docs test lint format bench clean mutations \
         test-core test-asan-ubsan test-tsan test-aarch64 wheel test-wheel check-wheel

WITH_ARGS := test-gpu test-gpu-2.15 test-python test-python-2.15 soak

.PHONY: help $(TASKS) $(WITH_ARGS)

help:
	@echo 'make build               builds tencache and installs it into .venv: .venv/bin/tencache'
	@echo 'make check               lints, and the fast tests of what changed: minutes'
	@echo 'make demo                trains a model beyond its memory budget and compares every bit'
	@echo 'make demo-cuda           the same on an emulated GPU: its bits count, its times do not'
	@echo 'make docs                build/docs/site: the documents as a site'
	@echo 'make test                a selection of everything below, as .ci/run does'
	@echo '  make lint              formats, layers, house rules, clang-tidy, ruff, mypy, documents'
	@echo '  make test-core         suites of the C++ core, optimised'
	@echo '  make test-asan-ubsan   the same under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo '  make test-tsan         the same under ThreadSanitizer'
	@echo '  make test-gpu          pytest on an emulated GPU            (ARGS="-k name -x")'
	@echo '  make test-gpu-2.15     the same on torch 2.15               (ARGS="-k name -x")'
	@echo '  make check-wheel       builds a wheel for both torches, and checks what it needs of a system'
	@echo '  make test-python       pytest on torch 2.11 in .venv       (ARGS="-k name -x")'
	@echo '  make test-python-2.15  pytest on torch 2.15 in .venv-2.15  (ARGS="-k name -x")'
	@echo '  make soak              kills, disk faults, forks, drift   (ARGS="--minutes 60")'
	@echo 'make wheel               dist/tencache-*.whl, for every supported torch; needs no compiler'
	@echo 'make test-wheel          installs it beside torch 2.11, 2.13 and 2.15, and runs the demo there'
	@echo 'make test-aarch64        compiles the core for aarch64, and runs its suites under qemu'
	@echo 'make bench               the benchmarks'
	@echo 'make mutations           one-line mistakes in tencache, each of which a program must notice'
	@echo 'make format              formats the sources'
	@echo 'make clean               removes build/'

$(TASKS):
	@$(PYTHON) scripts/dev.py $@

$(WITH_ARGS):
	@$(PYTHON) scripts/dev.py $@ $(ARGS)
