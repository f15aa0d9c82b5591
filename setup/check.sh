#!/bin/sh
# Says in one line what this machine lacks to set shorthaul up; silent when nothing is missing.
# Shell builtins only, because it runs where little else may be installed.
#
# usage: check.sh PYTHON ENVIRONMENT

python=$1
environment=$2

stop() {
    echo "shorthaul: $1" >&2
    exit 1
}

if [ ! -e "$environment/bin/pip" ]; then
    command -v "$python" >/dev/null 2>&1 ||
        stop "no $python on PATH; install Python 3.10 to 3.13, or name one: make PYTHON=python3.12"
    "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null ||
        stop "$python is $("$python" --version 2>&1 | { read -r line; echo "$line"; }), but Python 3.10 to 3.13 is needed; name one: make PYTHON=python3.12"
    # Debian ships venv without ensurepip; venv alone would leave an environment without pip.
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
        stop "$python has no venv module; install it (Debian, Ubuntu: apt-get install python3-venv)"
elif ! "$environment/bin/python" -c '' >/dev/null 2>&1; then
    stop "$environment no longer runs (was its Python removed?); delete it and run again: rm -rf $environment"
fi

# As shorthaul itself looks: a compiler named in CXX is never replaced by another in silence.
if [ -n "${CXX:-}" ]; then
    command -v "${CXX%% *}" >/dev/null 2>&1 && exit 0
    stop "CXX names ${CXX}, which is not found; correct it, or unset it to use g++ or clang++"
fi
for compiler in g++ clang++; do
    command -v "$compiler" >/dev/null 2>&1 && exit 0
done
for wheel in "$environment"/lib/python3*/site-packages/ziglang; do
    [ -d "$wheel" ] && exit 0
done
stop "no C++ compiler; install one (Debian, Ubuntu: apt-get install g++) or name yours: make CXX=/path/to/g++"
