# The command surface of the repository. Every target sets up what it needs, once, in .venv:
#
#   1. a virtual environment of the newest Python from 3.11 to 3.13 on the PATH (PYTHON=... chooses another),
#   2. the packages of requirements.lock, each held to its hash,
#   3. the two distributions of this repository, editable. They are built without build isolation: setuptools stands
#      in the lock too, so that nothing outside it is ever fetched or run.
#
# What set-up has to say goes to stderr; stdout belongs to the target's own command.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Overridable: make demo DEMO_ARGS="--duration 60 --json", make test TESTS=tests/unit TEST_ARGS="-x -k straggler".
PYTHON ?=
DEMO_ARGS ?=
TESTS ?=
TEST_ARGS ?=
EVALUATE_ARGS ?=
# Processes that share the tests without a broker, whole files each. Those with one run alone: they measure time and load.
TEST_WORKERS ?= 2

ALONE := bench faults soak

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := schemas agents streams deploy paceline paceline_trainer
CANDIDATES := python3.13 python3.12 python3.11 python3

# Exit 3: another version than we run on, which it prints. Exit 4: no virtual environments. In words that every Python
# since 2.6 understands, so that an old one can tell that it is old.
define PROBE
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.stdout.write("%d.%d" % tuple(sys.version_info[:2]))
    sys.exit(3)
try:
    import ensurepip, venv
except ImportError:
    sys.exit(4)
endef
export PROBE

.PHONY: help demo test lint type bench golden golden-approve faults soak evaluate evaluate-soak clean
.PHONY: have-bench have-golden have-faults have-soak

help:
	@echo 'make demo     a simulated fleet with injected faults, through a local broker and the workers (DEMO_ARGS=...)'
	@echo 'make test     all tests but the long ones (TESTS=tests/unit, TEST_ARGS=...)'
	@echo 'make lint     ruff: rules and format'
	@echo 'make type     mypy --strict'
	@echo 'make golden   recorded telemetry replayed against the findings on file'
	@echo 'make golden-approve  takes what they give now as approved'
	@echo 'make bench    benchmarks'
	@echo 'make faults   long fault campaigns'
	@echo 'make soak     hours under load, memory and lag watched'
	@echo 'make evaluate       detections against the truth of labelled cases, ten tuning and ten held-out seeds (hours)'
	@echo 'make evaluate-soak  30,000 GPU-days without a fault: nobody may be blamed'
	@echo 'make clean    removes $(VENV), caches and build outputs'
	@echo
	@echo 'Needs Python 3.11 to 3.13 and nothing else; PYTHON=/path/to/python3 chooses one when $(VENV) is made.'

demo: $(STAMP)
	@$(BIN)/paceline demo $(DEMO_ARGS)

test: $(STAMP)
ifeq ($(strip $(TESTS)),)
	@$(BIN)/python -m pytest $(ALONE:%=--ignore=tests/%) --ignore=tests/integration \
	  -n $(TEST_WORKERS) --dist loadfile tests $(TEST_ARGS)
	@$(BIN)/python -m pytest tests/integration $(TEST_ARGS)
else
	@$(BIN)/python -m pytest $(TESTS) $(ALONE:%=--ignore=tests/%) $(TEST_ARGS)
endif

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

type: $(STAMP)
	@$(BIN)/mypy $(PACKAGES)

golden: have-golden $(STAMP)
	@$(BIN)/python -m pytest tests/golden $(TEST_ARGS)

golden-approve: have-golden $(STAMP)
	@$(BIN)/python -m tests.golden.approve

faults: have-faults $(STAMP)
	@$(BIN)/python -m pytest tests/faults $(TEST_ARGS)

soak: have-soak $(STAMP)
	@$(BIN)/python -m pytest tests/soak $(TEST_ARGS)

# In five minutes every case with one tuning and one held-out seed: paceline evaluate --suite ci
evaluate: $(STAMP)
	@$(BIN)/paceline evaluate --suite ci --seeds 10 --held-out $(EVALUATE_ARGS)

evaluate-soak: $(STAMP)
	@$(BIN)/paceline evaluate --suite soak $(EVALUATE_ARGS)

# Scripts named bench_*.py print their own figures; test_*.py hold a figure to a bound.
bench: have-bench $(STAMP)
	@for script in $$(find tests/bench -name 'bench_*.py' | sort); do $(BIN)/python "$$script" || exit 1; done
	@if [ -n "$$(find tests/bench -name 'test_*.py')" ]; then $(BIN)/python -m pytest -s tests/bench $(TEST_ARGS); fi

have-golden:
	@[ -n "$$(find tests/golden -name 'test_*.py' 2>/dev/null)" ] || { echo 'no golden replays yet' >&2; exit 2; }

have-faults:
	@[ -n "$$(find tests/faults -name 'test_*.py' 2>/dev/null)" ] || { echo 'no fault campaigns yet' >&2; exit 2; }

have-soak:
	@[ -n "$$(find tests/soak -name 'test_*.py' 2>/dev/null)" ] || { echo 'no soak tests yet' >&2; exit 2; }

have-bench:
	@[ -n "$$(find tests/bench -name 'bench_*.py' -o -name 'test_*.py' 2>/dev/null)" ] || { \
	  echo 'no benchmarks yet' >&2; exit 2; }

$(STAMP): requirements.lock pyproject.toml paceline_trainer/pyproject.toml
	@chosen=''; old=''; bare=''; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",$(CANDIDATES)); do \
	  version=$$("$$candidate" -c "$$PROBE" 2>/dev/null); \
	  case $$? in \
	    0) chosen=$$candidate; break ;; \
	    3) old="$$old $$candidate is $$version;" ;; \
	    4) bare=$${bare:-$$candidate} ;; \
	  esac; \
	done; \
	if [ -z "$$chosen" ]; then \
	  if [ -n "$$bare" ]; then \
	    echo "paceline: $$bare cannot make virtual environments (no venv or ensurepip module): install python3-venv" >&2; \
	  elif [ -n "$$old" ]; then \
	    echo "paceline: needs Python 3.11, 3.12 or 3.13, but$${old%;}: install one of them, or name it with PYTHON=..." >&2; \
	  elif [ -n "$(PYTHON)" ]; then \
	    echo "paceline: PYTHON=$(PYTHON) does not run: name a Python 3.11, 3.12 or 3.13" >&2; \
	  else \
	    echo "paceline: no python3 on the PATH: install Python 3.11, 3.12 or 3.13, or name it with PYTHON=..." >&2; \
	  fi; \
	  exit 1; \
	fi; \
	"$$chosen" deploy/setup_env.py $(VENV) >&2
	@touch $@

clean:
	@rm -rf $(VENV) build dist paceline_trainer/build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name '*.egg-info' -prune -exec rm -rf {} + -o -name __pycache__ -prune -exec rm -rf {} +
