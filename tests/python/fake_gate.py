# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the shim's gate and for the core that says whether it is armed."""

from __future__ import annotations


class FakeGate:
    """Records what the gate was told; `armed` and `interrupts` can be switched."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.armed = True
        self.asked = 0
        self.open_count = 0
        self.interrupts = False  # once an op is open

    def open(self, name, addresses, modes):
        self.calls.append((name, list(addresses), list(modes)))
        self.open_count += 1
        if self.interrupts:
            raise KeyboardInterrupt

    def depth(self):
        return self.open_count

    def close_to(self, depth):
        self.calls += ["close"] * (self.open_count - depth)
        self.open_count = depth

    def is_armed(self):
        self.asked += 1
        return self.armed
