#!/usr/bin/env bash
# Make .venv and install requirements.txt into it. Nothing to do when that was done for the same requirements.
# PYTHON names the interpreter to use; otherwise the first one of version 3.11 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() {
    echo "set-up: $*" >&2
    exit 2
}

recent_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if recent_enough "$name"; then
            echo "$name"
            return
        fi
    done
    local what="no python3 on PATH is"
    if [ -n "${PYTHON:-}" ]; then what="PYTHON=$PYTHON is not"; fi
    stop "$what version 3.11 or newer: install one (Debian: apt-get install python3 python3-venv)" \
        "or name it with PYTHON=/path/to/python3."
}

make_venv() {
    local python
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        stop "$python has no venv module: install it (Debian: apt-get install python3-venv)."
    "$python" -m venv --clear .venv || stop "$python could not make .venv; its message is above."
}

# A copied or interrupted environment fails this check and is made anew.
if ! { recent_enough .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
    make_venv
fi

stamp=.venv/.installed-$(.venv/bin/python - <<'HASH'
import hashlib, pathlib, sys
files = [pathlib.Path("requirements.txt"), *sorted(pathlib.Path("requirements").glob("*.txt"))]
print(hashlib.sha256(sys.version.encode() + b"".join(f.read_bytes() for f in files)).hexdigest()[:16])
HASH
)
if [ -e "$stamp" ]; then
    exit 0
fi
echo "set-up: installing requirements.txt into .venv; some minutes the first time …" >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt ||
    stop "pip could not install requirements.txt (its message is above): check the network, or the proxy" \
        "(HTTPS_PROXY) and index (PIP_INDEX_URL) that pip uses, then run the same command again."
rm -f .venv/.installed-*
touch "$stamp"
