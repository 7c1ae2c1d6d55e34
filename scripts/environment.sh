# Sourced by the other scripts: an environment of its own for each, made once and used again.
#
# PYTHON chooses the interpreter (default: the first of python3, python3.13 … python3.10 that is new enough).

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "hangdoctor needs Python 3.10 or newer; ${PYTHON:+$PYTHON is not it. }say which to use: PYTHON=/path/to/python3.11 $0"
}

# make_environment NAME INSTALL… : leaves the environment's interpreter in $python. INSTALL is what pip installs; it is
# installed again only when pyproject.toml or INSTALL changed. More options for the venv: $venv_options.
make_environment() {
    local name=$1 base version folder wanted
    shift
    base=$(find_python)
    version=$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    folder=.venv/$name-$version
    python=$PWD/$folder/bin/python
    wanted="$(cksum <pyproject.toml) $base ${venv_options:-} $*"
    if [[ -x $python && $(cat "$folder/installed" 2>/dev/null) == "$wanted" ]]; then
        return
    fi
    say "making an environment in $folder (Python $version) …"
    rm -rf "$folder"
    # shellcheck disable=SC2086
    "$base" -m venv ${venv_options:-} "$folder" || fail "python -m venv failed (Debian, Ubuntu: apt install python3-venv)"
    "$python" -m pip install --quiet --disable-pip-version-check "$@" ||
        fail "pip could not install hangdoctor; its message is above"
    printf '%s' "$wanted" >"$folder/installed"
}
