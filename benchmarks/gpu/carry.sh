#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Collects and builds all that benchmarks/gpu/run.py needs on a machine with a GPU and without a
# network: this package and the programs, wheels of what the build and the tests require, and, where
# the other machine is to build, packages of Debian or Ubuntu with headers and static libraries. Run
# this script where there is a network, with the Python that has the torch of the other machine
# (`make build` makes one) and with a C library that is no newer than the other machine's:
#
#   PYTHON=.venv/bin/python bash benchmarks/gpu/carry.sh .carried   (an ignored folder)
set -euo pipefail
python=${PYTHON:-python3}
if [[ $python == */* && $python != /* ]]; then python=$PWD/$python; fi
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:?give the folder to fill}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$folder"
# run.py installs every package that lies here, so none from an earlier run may stay.
rm -f -- *.whl *.deb
# cmake and ninja come from that Python's folder, because its environment need not be active.
PATH=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH
apt-get download liburing-dev liburing2 libxxhash-dev nlohmann-json3-dev libnuma-dev libgtest-dev \
  libgmock-dev googletest libbenchmark-dev
"$python" -m pip download --quiet --dest "$folder" --only-binary=:all: \
  scikit-build-core 'click>=8.1' 'rich>=13' 'pytest>=8,<9.2' 'pytest-xdist>=3.6'
"$python" -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$folder" "$root"
cmake -S "$root" -B "$root/build/gpu" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DPython3_EXECUTABLE="$python" -DTENCACHE_BUILD_TORCH=OFF -DTENCACHE_BUILD_TESTS=ON \
  -DTENCACHE_BUILD_BENCHMARKS=ON
cmake --build "$root/build/gpu" --target gpu_core_test mapping_times
for program in tests/gpu_core_test benchmarks/mapping_times; do
  strip -o "$folder/$(basename "$program")" "$root/build/gpu/$program"
done
ls -s "$folder"
