# Sourced by the tools beside it: makes the virtual environment, builds the package into it and puts it on the PATH.
#
#   STRATA_VENV   the environment's folder (default: .venv in the repository)
#
# Needs: python3 of at least 3.10 and a C++17 compiler. A torch that python3 can import is used as it is; otherwise the
# one pinned in constraints.txt is installed.
#
# The package is installed editable: `python -m strata_gdn` run from the repository finds the folder strata_gdn/ there
# before any installed copy, and only an editable install leaves the compiled extension in it. It also keeps the build
# folder, so that a later call recompiles only what changed.

strata_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
strata_venv="${STRATA_VENV:-$strata_root/.venv}"
# With the environment already on the PATH, python3 would be the environment's own.
PATH="${PATH//"$strata_venv/bin:"/}"
strata_python="$(python3 -c 'import sys; print(sys.executable)')"

# Without a GPU the CUDA kernels are only compiled, where there is a compiler for them: one architecture is enough for that.
if ! command -v nvidia-smi >/dev/null; then
  export GDN_CUDA_ARCHS="${GDN_CUDA_ARCHS:-90}"
fi

strata_say() { printf '[%s] %s\n' "$(basename "$0")" "$*"; }

# Prints the folders that hold the calling Python's packages, when torch is among them.
strata_site_folders() {
  (cd / && "$strata_python" - <<'PY'
import importlib.util, sys
if importlib.util.find_spec("torch"):
    print(*(entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))), sep="\n")
PY
  )
}

# Everything that decides what is installed, in one line.
strata_fingerprint() {
  "$strata_python" -c 'import sys; print(sys.version, sys.prefix)' | cat - "$strata_root/pyproject.toml" \
    "$strata_root/tools/constraints.txt" "$strata_root/tools/setup_env.sh" | sha256sum
}

# The architectures asked for, as setup.py reads them.
strata_archs() { printf '%s=%s\n' GDN_CUDA_ARCHS "${GDN_CUDA_ARCHS:-}" GDN_HIP_ARCHS "${GDN_HIP_ARCHS:-}"; }

strata_create() {
  local sites constraints="$strata_venv/constraints.txt" made_here="$strata_venv/made_by_setup_env"
  if [ -n "$(ls -A "$strata_venv" 2>/dev/null)" ] && [ ! -e "$made_here" ]; then
    strata_say "$strata_venv exists and was not made here: remove it, or set STRATA_VENV to another folder" >&2
    return 1
  fi
  sites="$(strata_site_folders)"
  strata_say "creating $strata_venv"
  "$strata_python" -m venv --clear "$strata_venv"
  touch "$made_here"
  if [ -n "$sites" ]; then
    # --system-site-packages would show the base installation, not the virtual environment that python3 may belong to.
    strata_say "using the torch of $strata_python"
    "$strata_venv/bin/python" - "$sites" <<'PY'
import pathlib, sys, sysconfig
lines = [f"import site; site.addsitedir({folder!r})\n" for folder in sys.argv[1].splitlines()]
(pathlib.Path(sysconfig.get_path("purelib")) / "calling_environment.pth").write_text("".join(lines))
PY
    grep -v '^torch==' "$strata_root/tools/constraints.txt" >"$constraints"
    "$strata_venv/bin/python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >>"$constraints"
  else
    strata_say "$strata_python has no torch: installing $(grep '^torch==' "$strata_root/tools/constraints.txt")"
    cp "$strata_root/tools/constraints.txt" "$constraints"
    "$strata_venv/bin/python" -m pip install -qq --constraint "$constraints" torch
  fi
  strata_say "building the package and installing what its tests, demo and checks need"
  "$strata_venv/bin/python" -m pip install -qq --constraint "$constraints" \
    --editable "$strata_root[transformers,bench,test,dev]"
  strata_archs >"$strata_venv/archs"
  strata_fingerprint >"$strata_venv/fingerprint"
}

# Whether the extension is missing, older than a source, or built for other architectures.
strata_is_stale() {
  local extension="$strata_root/strata_gdn/_C.abi3.so"
  [ ! -e "$extension" ] ||
    [ "$(cat "$strata_venv/archs")" != "$(strata_archs)" ] ||
    [ -n "$(find "$strata_root/csrc" "$strata_root/setup.py" "$strata_root/tools/build_backend" -type f \
      -not -name '*.pyc' -newer "$extension" -print -quit)" ]
}

# In place and incremental; the compiler's output is shown when it fails.
strata_rebuild() {
  local log="$strata_venv/rebuild.log"
  if ! (cd "$strata_root" && python setup.py build_ext --inplace >"$log" 2>&1); then
    cat "$log" >&2
    return 1
  fi
  strata_archs >"$strata_venv/archs"
}

strata_setup() {
  if [ "$(cat "$strata_venv/fingerprint" 2>/dev/null)" != "$(strata_fingerprint)" ]; then
    strata_create
  elif strata_is_stale; then
    strata_say "sources or architectures changed: rebuilding"
    strata_rebuild
  else
    strata_say "using $strata_venv"
  fi
}

# Programs such as ninja and cmake may be among the caller's packages and not in the environment. They come before the
# system's: ninja starts over in a build folder that another version of it has left.
strata_scripts="$("$strata_python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')"
export PATH="$strata_venv/bin:$strata_scripts:$PATH"
strata_setup
