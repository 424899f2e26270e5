#!/usr/bin/env bash
# Everything that needs a GPU, in one go: the tests, compute-sanitizer over every CUDA kernel, and the bench, whose JSON is left
# in the folder given (default: benchmarks).
#
#   STRATA_PYTHON   a Python that has the package and its test requirements; without it tools/setup_env.sh makes one
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="$(mkdir -p "${1:-$here/../benchmarks}" && cd "${1:-$here/../benchmarks}" && pwd)"
if [ -z "${STRATA_PYTHON:-}" ]; then
  source "$here/setup_env.sh"
  STRATA_PYTHON="$(command -v python)"
fi
# Not in the repository's folder: its strata_gdn/ would come before an installed package.
cd "$(mktemp -d)"
failed=0
"$STRATA_PYTHON" -m pytest -q -p no:cacheprovider -c "$here/../pyproject.toml" "$here/../tests/test_cuda.py" || failed=1
for tool in memcheck racecheck initcheck synccheck; do
  echo "[gpu_check.sh] compute-sanitizer $tool"
  compute-sanitizer --tool "$tool" --error-exitcode 1 "$STRATA_PYTHON" "$here/every_cuda_kernel.py" | tail -4 || failed=1
done
"$STRATA_PYTHON" -m strata_gdn bench --device cuda --json "$out/cuda.json" || failed=1
exit "$failed"
