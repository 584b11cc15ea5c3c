#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The whole way on a machine that has only Python >= 3.10: environment, install, fetch, quantize, build, run.
# Safe to run again: a step whose output is there and newer than its inputs is skipped. Asks nothing.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)

usage() {
    cat <<'USAGE'
usage: scripts/nano-build.sh [options]

  --prompt TEXT    what the model goes on from (default: "The capital of France is")
  -n N             at most N new tokens (default: 48)
  --model SRC      name of a fetchable model, a .gguf or .safetensors file, or a checkpoint folder
                   (default: smollm2-135m)
  --recipe NAME    quantization recipe (default: the tool's own default)
  --target NAME    platform to build for (default: this machine)
  --out DIR        where results go (default: out/ in the checkout)
  --offline        no network: only what is cached or at hand
  --json           machine-readable report of the run
  -h, --help       this text

environment: PYTHON (interpreter to use), NANOBUILD_VENV (default: .venv in the checkout), NANOBUILD_CACHE, PIP_*
exit codes: 0 done, 2 usage, 3 input refused, 4 integrity, 5 resource, 6 tool or platform, 7 busy
USAGE
}

fail() { # exit code, E_CODE, text, hint
    printf 'nano-build: error[%s]: %s\n' "$2" "$3" >&2
    if [ -n "${4-}" ]; then printf 'hint: %s\n' "$4" >&2; fi
    exit "$1"
}

say() { printf '==> %s\n' "$*" >&2; }

prompt="The capital of France is" tokens=48 model=smollm2-135m recipe='' target='' out='' offline='' json=''
while [ $# -gt 0 ]; do
    case $1 in
        --prompt | -n | --model | --recipe | --target | --out)
            [ $# -ge 2 ] || fail 2 E_USAGE "$1 needs a value" "scripts/nano-build.sh --help"
            case $1 in
                --prompt) prompt=$2 ;;
                -n) tokens=$2 ;;
                --model) model=$2 ;;
                --recipe) recipe=$2 ;;
                --target) target=$2 ;;
                --out) out=$2 ;;
            esac
            shift 2
            ;;
        --offline) offline=1 && shift ;;
        --json) json=1 && shift ;;
        -h | --help) usage && exit 0 ;;
        *) fail 2 E_USAGE "unknown option $1" "scripts/nano-build.sh --help" ;;
    esac
done

# --- environment -----------------------------------------------------------------------------------------------------

find_python() {
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

[ -f "$root/pyproject.toml" ] || fail 6 E_INSTALL "$root is not a checkout of nano-build (no pyproject.toml)"
venv=${NANOBUILD_VENV:-$root/.venv}
python=$venv/bin/python
if ! "$python" -c 'import pip' >/dev/null 2>&1; then
    base=$(find_python) || fail 6 E_PYTHON "no Python >= 3.10 found" "install one, or set PYTHON=/path/to/python3"
    say "making $venv with $base"
    if ! "$base" -m venv "$venv" >&2; then
        fail 6 E_VENV "$base cannot make a virtual environment" \
            "on Debian and Ubuntu: apt-get install python3-venv, then run this again"
    fi
fi

stamp="$(cksum <"$root/pyproject.toml") $root"
if [ "$(cat "$venv/.nano-build-stamp" 2>/dev/null)" != "$stamp" ]; then
    say "installing nano-build into $venv"
    set -- --quiet --disable-pip-version-check
    if [ -n "$offline" ]; then set -- "$@" --no-index --no-build-isolation; fi
    "$python" -m pip install "$@" -e "$root" >&2 || fail 6 E_INSTALL "pip could not install nano-build" \
        "see pip's lines above; behind a proxy or mirror set the PIP_* variables"
    printf '%s\n' "$stamp" >"$venv/.nano-build-stamp"
fi

# --- the model's way -------------------------------------------------------------------------------------------------

nano_build() { "$python" -m nanobuild "$@"; }

# stale OUTPUT INPUT: is the output missing, or older than the input or than any of our own code?
stale() {
    [ -e "$1" ] || return 0
    [ -n "$(find -L "$2" "$root/nanobuild" "$root/kernels" "$root/platforms" "$root/recipes" \
        -name __pycache__ -prune -o -type f -newer "$1" -print 2>/dev/null | head -n 1)" ]
}

name=$(basename -- "$model")
name=${name%.gguf}
name=${name%.safetensors}
out=${out:-$root/out}
mkdir -p -- "$out" || fail 5 E_OUTPUT "$out cannot be made" "choose another place with --out DIR"
quantized=$out/$name${recipe:+-$recipe}.safetensors
bundle=$out/$name${recipe:+-$recipe}${target:+-$target}

if [ -e "$model" ]; then
    source=$model
else
    source=$(nano_build fetch "$model" ${offline:+--offline})
fi

# `source` is remembered too: another checkpoint of the same name is another model.
if [ "$(cat "$quantized.source" 2>/dev/null)" != "$source" ] || stale "$quantized" "$source"; then
    rm -f -- "$quantized.source"
    nano_build quantize "$source" -o "$quantized" --force ${recipe:+--recipe "$recipe"} >&2
    printf '%s\n' "$source" >"$quantized.source"
fi
if stale "$bundle/manifest.json" "$quantized"; then
    nano_build build "$quantized" -o "$bundle" --force ${target:+--target "$target"} >&2
fi

say "bundle: $bundle"
nano_build run "$bundle" --prompt "$prompt" -n "$tokens" ${json:+--json}
