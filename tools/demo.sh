#!/usr/bin/env bash
# Sets up the environment and runs the demo: a small Qwen3-Next with Transformers' own fallback and with this package.
# Arguments go to `python -m strata_gdn demo`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
cd "$strata_root"
exec python -m strata_gdn demo "$@"
