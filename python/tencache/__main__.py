# SPDX-License-Identifier: Apache-2.0
"""`python -m tencache …`: the `tencache` command under a chosen interpreter."""

from tencache._cli import main

if __name__ == "__main__":
    main()
