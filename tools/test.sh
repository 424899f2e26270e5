#!/usr/bin/env bash
# Sets up the environment, checks the style and runs every test. Arguments go to pytest, e.g. tools/test.sh -k conv.
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/lint.sh"
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
cd "$strata_root"

# A worker a core, each with one thread: the tests are many and small, and more threads than cores only wait for each other.
workers="$(nproc)"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" MKL_NUM_THREADS="${MKL_NUM_THREADS:-1}"
strata_say "pytest with $workers workers"
exec python -m pytest --quiet --numprocesses "$workers" --dist loadgroup "$@"
