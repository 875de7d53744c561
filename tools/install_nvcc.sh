#!/bin/sh
# Installs nvcc and what it takes from packages into FOLDER, with the two links that nvcc and CMake
# expect and the packages leave out; FOLDER/toolkit/bin/nvcc is the compiler.
#
#     tools/install_nvcc.sh FOLDER [PYTHON]
set -eu
"${2:-python3}" -m venv "$1"
"$1/bin/pip" install --quiet --disable-pip-version-check \
  "cuda-toolkit[nvcc,cudart,cccl,crt,nvvm]==13.0.2"
for found in "$1"/lib/python3*/site-packages/nvidia/cu13; do
  ln -s lib "$found/lib64"
  ln -s libcudart.so.13 "$found/lib/libcudart.so"
  ln -s "$found" "$1/toolkit"
done
