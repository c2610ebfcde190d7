# SPDX-License-Identifier: Apache-2.0
#
# Describes _build_info.py, which the build writes beside the libraries, for type checkers.

VERSION: str
TORCH_VERSION: str
BUILD_TYPE: str
