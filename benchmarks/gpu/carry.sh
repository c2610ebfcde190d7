#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Collects all that benchmarks/gpu/run.py needs to build on a machine without a network: packages of
# Debian or Ubuntu with headers and static libraries, and wheels of the Python build tools and of
# this package's requirements. Run it where there is a network, on the same system and Python as the
# target.
#
#   bash benchmarks/gpu/carry.sh .carried        (an ignored folder of the working tree)
set -euo pipefail
folder=${1:?give the folder to fill}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$folder"
apt-get download liburing-dev liburing2 libxxhash-dev nlohmann-json3-dev libnuma-dev libgtest-dev \
  libgmock-dev googletest
python3 -m pip download --quiet --dest "$folder" --only-binary=:all: \
  scikit-build-core 'click>=8.1' 'rich>=13' 'pytest>=8' 'pytest-xdist>=3.6'
ls -s "$folder"
