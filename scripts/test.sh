#!/usr/bin/env bash
# Sets up .venv and runs every check: ruff, import-linter, pytest.  Needs Python >= 3.11 with pip; 24 to 46 minutes on two cores
# of a shared machine; -n 8 takes eight processes instead of two.
#     bash scripts/test.sh [arguments of pytest]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh test

echo "== ruff"
"$VENV/bin/ruff" check .
"$VENV/bin/ruff" format --check .
echo "== import-linter"
"$VENV/bin/lint-imports"
echo "== pytest"
exec "$VENV/bin/python" -m pytest "$@"
