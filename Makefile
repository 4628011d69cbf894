# Everything a newcomer needs: `make demo` shows LinkPass at work, `make test` runs all tests. Both install what they need.
PY := .venv/bin/python
C_FILES = $(shell git ls-files '*.c' '*.h')

.PHONY: help setup demo test lint bench matrix explore clean

help:
	@echo "make demo    an RDMA job between two guests survives the loss of its rail, with a timeline, a plot and figures"
	@echo "make test    all tests (as root: they make namespaces, links and guests)"
	@echo "make lint    ruff, mypy --strict, import-linter, hadolint, clang-format, C with -Wall -Wextra -Werror"
	@echo "make bench   the measurements of docs/measurements.md"
	@echo "make matrix  every RDMA workload x every fault in guests, without and with LinkPass (hours; goes on where it stopped)"
	@echo "make explore the shim core's full exploration (hours; \`make test\` runs a part)"
	@echo "make clean   remove build products"

setup:
	@scripts/setup

demo: setup
	@$(PY) -m linkpass_lab demo --rdma

test: setup
	@$(PY) -m pytest

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@scripts/lint-files

bench:
	@scripts/setup bench
	@$(PY) bench/run.py

matrix: setup
	@$(PY) -m linkpass_lab prepare --install
	@$(PY) -m linkpass_lab baseline --labs 2
	@$(PY) -m linkpass_lab matrix

explore: setup
	@mkdir -p build && cmake -S linkpass/shim -B build/native/explore -DLINKPASS_TESTS=ON -DCMAKE_BUILD_TYPE=Release >build/explore.log
	@cmake --build build/native/explore --target explore >>build/explore.log
	@build/native/explore/core/explore suite full

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
