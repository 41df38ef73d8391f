#!/bin/sh
# tools/setup.sh PYTHON TORCH EXTRA: makes .venv and installs normlab[EXTRA] in it, with the tested versions.
set -eu
python=$1 torch=$2 extra=$3
if ! command -v "$python" >/dev/null 2>&1; then
    echo "setup: no '$python' on PATH; normlab needs Python 3.10 or newer (make PYTHON=python3.12 ...)" >&2
    exit 2
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "setup: '$python' is $("$python" -V 2>&1); normlab needs Python 3.10 or newer (make PYTHON=python3.12 ...)" >&2
    exit 2
}
[ -x .venv/bin/python ] || "$python" -m venv .venv
{ grep -v '^torch==' constraints.txt; echo "torch==$torch"; } > .venv/constraints.txt

# uv is quicker, but does not read pip's settings. Where pip has been given a folder of wheels, hand it on, and
# take uv only if it resolves the very torch that is asked for.
links=$(.venv/bin/pip config get global.find-links 2>/dev/null | tr '\n' ' ' || true)
set -- # build uv's flags
for link in $links; do set -- "$@" --find-links "$link"; done
if command -v uv >/dev/null 2>&1 &&
    plan=$(uv pip install --python .venv/bin/python "$@" --dry-run "torch==$torch" 2>&1) &&
    { [ -z "$links" ] || ! printf '%s' "$plan" | grep -q nvidia; }; then
    echo "setup: installing normlab[$extra] with uv (torch==$torch)"
    uv pip install -q --python .venv/bin/python "$@" -c .venv/constraints.txt -e ".[$extra]"
else
    echo "setup: installing normlab[$extra] with pip (torch==$torch); the first time takes a few minutes"
    .venv/bin/pip install -q --disable-pip-version-check -c .venv/constraints.txt "torch==$torch" 2>.venv/pip.log ||
        { cat .venv/pip.log >&2; exit 1; }
    .venv/bin/pip install -q --disable-pip-version-check -c .venv/constraints.txt -e ".[$extra]" 2>.venv/pip.log ||
        { cat .venv/pip.log >&2; exit 1; }
fi
find .venv -maxdepth 1 -name '.*-*' ! -name "*-$torch" -delete # stamps of another torch
touch ".venv/.$extra-$torch"
