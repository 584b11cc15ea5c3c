#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need and runs them all: format, lint, types, shell scripts, pytest. Arguments go to pytest.
# With CI=true a missing tool fails instead of skipping its tests.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '==> %s\n' "$*" >&2; }

need=()
command -v qemu-aarch64-static >/dev/null || need+=(qemu-user-static)
command -v shellcheck >/dev/null || need+=(shellcheck)
command -v strace >/dev/null || need+=(strace)
command -v gcc >/dev/null || need+=(gcc libc6-dev)
command -v readelf >/dev/null || need+=(binutils)
command -v llvm-objdump >/dev/null || need+=(llvm)
[ -d /usr/include/simde ] || need+=(libsimde-dev)
if [ ${#need[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing ${need[*]}"
        export DEBIAN_FRONTEND=noninteractive
        { apt-get -qq update && apt-get -qq -y --no-install-recommends install "${need[@]}"; } >/dev/null ||
            say "apt-get failed"
    else
        say "not installed, their tests will be skipped: ${need[*]} (as root: apt-get install ${need[*]})"
    fi
fi

venv=${NANOBUILD_VENV:-$PWD/.venv}
python=$venv/bin/python
if ! "$python" -c 'import pip' >/dev/null 2>&1; then
    say "making $venv"
    "${PYTHON:-python3}" -m venv "$venv" || {
        say "no virtual environment: on Debian and Ubuntu, apt-get install python3-venv"
        exit 6
    }
fi
stamp="test $(cat pyproject.toml scripts/constraints.txt | cksum) $PWD"
if [ "$(cat "$venv/.nano-build-test-stamp" 2>/dev/null)" != "$stamp" ]; then
    say "installing the package and its test dependencies into $venv"
    "$python" -m pip install --quiet --disable-pip-version-check -c scripts/constraints.txt -e '.[test]'
    printf '%s\n' "$stamp" >"$venv/.nano-build-test-stamp"
fi

failed=0
check() {
    say "$*"
    "$@" || failed=1
}
check "$venv/bin/ruff" check .
check "$venv/bin/ruff" format --check .
check "$venv/bin/mypy"
if command -v shellcheck >/dev/null; then
    check shellcheck scripts/*.sh .ci/run
elif [ "${CI:-}" = true ]; then
    say "shellcheck is missing"
    failed=1
fi
# Last, so that pytest's own summary is the last thing on the screen.
"$python" -m pytest "$@" || failed=1
exit "$failed"
