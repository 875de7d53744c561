#!/bin/sh
# Prints the Python interpreter to make .venv with: $1 if given, else the first that will do.
set -u
check=$(dirname "$0")/check_python.py

if [ -n "${1:-}" ]; then
  "$1" "$check" >&2 || exit 1
  echo "$1"
  exit 0
fi

reasons=""
for python in python3 python3.13 python3.12 python3.11 python3.10; do
  command -v "$python" >/dev/null 2>&1 || continue
  if reason=$("$python" "$check" 2>/dev/null); then
    echo "$python"
    exit 0
  fi
  # A version manager's shim exists, but does not run.
  reasons="$reasons
  $python: ${reason:-does not run}"
done

cat >&2 <<EOF
No suitable Python found: 3.10, 3.11, 3.12 or 3.13, with venv and the header Python.h.${reasons:-
  there is no python3 on PATH}
On Debian and Ubuntu: apt-get install python3-dev python3-venv. Another interpreter is named by
  make PYTHON=/path/to/python3 ...
EOF
exit 1
