#!/usr/bin/env bash
# Everything that needs a GPU, in one go: info, build of the torch-free programs, tests, parity, compute-sanitizer, bench.
#
#   tools/gpu_check.sh [--limit SECONDS] [OUT [PART...]]      OUT: a folder for the JSON (default: build/gpu_check)
#   tools/gpu_check.sh OUT tests parity sanitizers bench      only these parts; --help lists them
#
#   STRATA_PYTHON   a Python that has the package and its test requirements; without it tools/setup_env.sh makes one
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ -z "${STRATA_PYTHON:-}" ]; then
  source "$here/setup_env.sh"
  STRATA_PYTHON="$(command -v python)"
fi
if [ "$#" -eq 0 ]; then
  set -- "$here/../build/gpu_check"
fi
exec "$STRATA_PYTHON" "$here/gpu_check.py" "$@"
