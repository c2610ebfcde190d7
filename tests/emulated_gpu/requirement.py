# SPDX-License-Identifier: Apache-2.0
"""What tests need that run on the emulated GPU alone: `pytestmark = needs_emulated_gpu`."""

from __future__ import annotations

import os

import pytest

needs_emulated_gpu = pytest.mark.skipif(
    "EMULATED_GPU_OPERATORS" not in os.environ, reason="make test-gpu runs it on an emulated GPU"
)
