# SPDX-License-Identifier: Apache-2.0
"""tencache's figures in the logs of training frameworks.

Each module here imports its framework, and tencache itself imports none of these modules. None of
them is needed to train under a budget: they only show what the budget costs, where the framework's
own figures are.

* `tencache.integrations.transformers.TencacheCallback` for the Hugging Face Trainer
* `tencache.integrations.lightning.TencacheCallback` for Lightning
"""
