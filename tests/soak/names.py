# SPDX-License-Identifier: Apache-2.0
"""Names that the runner, which has no torch, and the programs share."""

# Ways in which a forked child ends.
NINE_WAYS = (
    "exit",
    "_exit",
    "exception",
    "SIGTERM",
    "SIGKILL",
    "SIGSEGV",
    "abort",
    "exec",
    "parent first",
)
# Ways to write a checkpoint.
WRITER_NAMES = ("torch.save", "old torch.save", "pickle", "safetensors", "distributed")
