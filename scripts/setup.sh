# Sourced by test.sh and demo.sh: makes .venv and installs the project with the extra named in $1, once for each pyproject.toml.
# Sets VENV.  PYTHON chooses the interpreter (default: the first of python3, python3.13, ... that is 3.11 or newer).
VENV=.venv
extra=${1:-}
stamp=$VENV/.installed-${extra:-base}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "error: Python: expected 3.11 or newer on PATH (or its path in PYTHON), found none" >&2
    return 1
}

if [ ! -e "$stamp" ] || ! cmp -s pyproject.toml "$stamp"; then
    python=$(find_python)
    echo "== setting up $VENV with $("$python" --version) (one to three minutes, once)"
    [ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -e ".${extra:+[$extra]}"
    cp pyproject.toml "$stamp"
fi
