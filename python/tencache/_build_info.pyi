# SPDX-License-Identifier: Apache-2.0
#
# Describes _build_info.py, which the build writes beside the libraries, for type checkers.

VERSION: str
KNOWN_TORCH: tuple[str, str]
TORCH_SHIMS: dict[str, str]
CUDA_SHIMS: dict[str, str]
BUILD_TYPE: str
