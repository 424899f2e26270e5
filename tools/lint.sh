#!/usr/bin/env bash
# Checks the style of Python (ruff) and C++ (clang-format). --fix rewrites the files instead.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
cd "$strata_root"

cxx_files() { find csrc tests tools -regextype posix-extended -regex '.*\.(h|inl|cpp|cu|cuh|hip)' -print0; }

if [ "${1:-}" = "--fix" ]; then
  ruff check --quiet --fix .
  ruff format --quiet .
  cxx_files | xargs -0 clang-format -i
else
  ruff check .
  ruff format --check .
  cxx_files | xargs -0 clang-format --dry-run -Werror
  strata_say "C++ is formatted"
fi
