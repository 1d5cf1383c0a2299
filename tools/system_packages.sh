#!/usr/bin/env bash
# Check for the programs and libraries that the whole suite needs and pip cannot install.
# As root on a Debian-like machine install those missing; otherwise say which, and stop with status 2.
set -euo pipefail

missing=()
need() { # PACKAGE TEST...: PACKAGE is needed unless TEST succeeds
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
any_program() {
    local name
    for name in "$@"; do command -v "$name" && return; done
    return 1
}
postgres_server() { compgen -G '/usr/lib/postgresql/*/bin/initdb' || command -v initdb; }
shared_library() { compgen -G "/usr/lib/*/$1" || compgen -G "/usr/lib*/$1" || compgen -G "/opt/homebrew/lib/${1%%.so*}*"; }
venv_module() { # any Python will do if .venv stands already
    [ -x .venv/bin/python ] || "${PYTHON:-python3}" -c 'import ensurepip, venv'
}

need python3-venv venv_module
need postgresql postgres_server
need redis-server any_program redis-server
need chromium any_program chromium chromium-browser
need gettext any_program msgfmt
need libpangoft2-1.0-0 shared_library 'libpangoft2-1.0.so.0'
need libharfbuzz-subset0 shared_library 'libharfbuzz-subset.so.0'

if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "set-up: the tests need ${missing[*]} (names of Debian's packages): install them" \
        "(Debian: sudo apt-get install ${missing[*]}) and run again." >&2
    exit 2
fi
echo "set-up: installing ${missing[*]} with apt-get …" >&2
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -qq --yes --no-install-recommends "${missing[@]}"; } >&2 </dev/null; then
    echo "set-up: apt-get could not install ${missing[*]} (its message is above): check the network and" \
        "/etc/apt/sources.list, or install them by hand, then run again." >&2
    exit 2
fi
