# SPDX-License-Identifier: Apache-2.0
"""Operators on the emulated GPU equal the CPU's, byte for byte, and each one is compared.

The table is PyTorch's own: its samples of every public function (operator_samples.py), and programs
for what these do not reach (operator_calls.py). All operators that they call, forward and backward,
are called again on both devices (operator_comparison.py). An operator that the emulated GPU has and
the table does not reach must be in a list below, with the reason. The first sample of each function
also runs as a whole, since PyTorch's own code may choose another way on CUDA. A real GPU rounds
differently: the suite is for tests/emulated_gpu/run, and skips if torch sees no GPU.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(
        torch.cuda.device_count() == 0, reason="needs a GPU: start it by tests/emulated_gpu/run"
    ),
    pytest.mark.xdist_group("operators"),  # one process makes the table
]

# Operators of the emulated GPU that nothing compares.
NOT_COMPARED = {
    "quantized tensors have no stand-in: the operator refuses with its name": (
        "_make_per_channel_quantized_tensor",
        "_make_per_tensor_quantized_tensor",
        "dequantize.self",
        "quantize_per_channel",
        "quantize_per_tensor",
        "quantize_per_tensor.tensor_qparams",
        "quantize_per_tensor_dynamic",
    ),
    "nested tensors have no stand-in": (
        "_nested_compute_contiguous_strides_offsets",
        "_nested_from_padded",
        "_nested_tensor_from_mask",
        "_nested_tensor_from_mask_left_aligned",
    ),
    "for dense tensors it only raises, on the CPU too": ("sspaddmm.out",),
    "the CPU has no kernel for what they call": (
        "_scaled_addmm",
        "_scaled_addmm_",
        "_scaled_grouped_mm_v2",
    ),
    "the CPU leaves parts of its second result unwritten": (
        "_ctc_loss",
        "_ctc_loss.Tensor",
        "_ctc_loss.Tensor_out",
        "_ctc_loss.out",
    ),
}
# Operators with a kernel of our own, because the CPU has none, and the test that compares each.
COMPARED_ELSEWHERE = {
    "_fused_rms_norm": "test_operator_programs.py",
    "_fused_rms_norm_backward": "test_operator_programs.py",
    "_thnn_fused_gru_cell": "test_operator_programs.py",
    "_thnn_fused_gru_cell_backward": "test_operator_programs.py",
    "_thnn_fused_lstm_cell": "test_operator_programs.py",
    "_thnn_fused_lstm_cell_backward_impl": "test_operator_programs.py",
    "native_dropout": "test_operator_programs.py",
}
# Functions whose samples prove nothing here, and why.
NO_SAMPLES = {
    **dict.fromkeys(("histogram", "histogramdd", "sparse.sampled_addmm"), "not on CUDA"),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "not on CUDA",
    **dict.fromkeys(
        ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"), "has no values"
    ),
    "as_strided": "the sample's memory ends before its strides do, once it is copied",
    "new_empty_strided": "has no values",
    "nn.functional.linear_cross_entropy": "CUDA's products give a wider type than they take",
    "sparse.mm": "CUDA has no reduction of CSR",
    "tensor_split": "takes its indices on the host",
    "to_sparse": "its gradient cannot be weighted by a dense tensor",
}
# Functions where PyTorch takes another way on CUDA, so results are close, not equal.
CLOSE = {
    "nn.functional.rms_norm": "CUDA has a fused kernel",
    "renorm": "the type in which norms are accumulated depends on the device",
}
# Functions that draw random numbers, from another generator than the CPU's.
RANDOM = {
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward",
    "nn.functional.rrelu",
    "normal",
    "pca_lowrank",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "svd_lowrank",
    "uniform",
}
# Functions whose statistics are float on CUDA; the operators themselves are compared.
WIDER = ("native_layer_norm", "native_batch_norm", "_native_batch_norm_legit")
WIDER += ("_batch_norm_with_update",)
NOT_AS_A_WHOLE = {"linalg.eig": "its gradient is defined for losses without phase only"}
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Table:
    """The outcome of comparing everything."""

    operators: dict[str, str]  # the differences
    functions: dict[str, str]
    not_reached: set[str]


@pytest.fixture(scope="module")
def table() -> Table:
    # The imports stand here, since only this suite needs PyTorch's samples, which take seconds.
    from operator_calls import CALLS
    from operator_comparison import Comparison, Recorder, difference, installed_operators
    from operator_samples import Sample, samples, samples_of_lists

    left_out = {f"aten::{name}" for names in NOT_COMPARED.values() for name in names}
    comparison = Comparison(left_out.__contains__)
    functions: dict[str, str] = {}

    def compare_whole(sample: Sample) -> None:
        if sample.name in NOT_AS_A_WHOLE:
            return
        found = difference(
            sample.on("cuda" if sample.name in RANDOM else "cpu"),
            sample.on("cuda"),
            is_wider=sample.name in WIDER,
            tolerance=TOLERANCE if sample.name in CLOSE else None,
        )
        if found is not None:
            functions[f"{sample.name} of {sample.dtype}"] = found

    def is_left_out(name: str) -> bool:
        return name in NO_SAMPLES or name.startswith("jiterator")  # they use NVRTC

    # For each sample PyTorch searches the whole stack for a test of its own, and for each seed it
    # keeps a traceback for absent kinds of devices. Both would take most of the time.
    with (
        patch("torch.testing._internal.common_utils.extract_test_fn", return_value=None),
        patch("torch.testing._internal.opinfo.core.extract_test_fn", return_value=None),
        patch.object(torch.xpu, "manual_seed_all"),
        patch.object(torch.mtia, "manual_seed_all"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for sample in itertools.chain(samples(is_left_out), samples_of_lists()):
            with Recorder(comparison.seen) as recorder:
                sample.on("cpu")
            if sample.number == 0:
                compare_whole(sample)  # not recorded: PyTorch uses other formulas under a Recorder
            comparison.compare_all(recorder.calls)
        for call in CALLS:
            torch.manual_seed(5)
            with Recorder(comparison.seen) as recorder:
                call()
            comparison.compare_all(recorder.calls)
    not_reached = {
        name
        for name, installed in installed_operators().items()
        if installed.fate == "emulated" and installed.calls == 0
    }
    return Table(comparison.differences, functions, not_reached - left_out)


def test_operators_give_the_bytes_of_the_cpu(table: Table) -> None:
    assert table.operators == {}


def test_functions_give_the_bytes_of_the_cpu(table: Table) -> None:
    assert table.functions == {}


def test_every_operator_is_compared_or_named(table: Table) -> None:
    assert table.not_reached == set()


def test_every_kernel_of_our_own_is_compared_somewhere() -> None:
    from operator_comparison import installed_operators

    own = {
        name.removeprefix("aten::")
        for name, installed in installed_operators().items()
        if installed.fate == "own"
    }
    assert own - {"copy_"} == set(COMPARED_ELSEWHERE)  # each comparison's `to` compares copy_
    for suite in set(COMPARED_ELSEWHERE.values()):
        assert Path(__file__).with_name(suite).exists()


def test_refused_operators_have_no_cpu_kernel() -> None:
    from operator_comparison import installed_operators

    refused = [name for name, found in installed_operators().items() if found.fate == "refused"]
    assert refused
    for name in refused:
        assert not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"), name


def test_operator_without_cpu_kernel_names_itself() -> None:
    with pytest.raises(NotImplementedError, match="aten::_cudnn_init_dropout_state"):
        torch.ops.aten._cudnn_init_dropout_state(0.5, True, 1, device="cuda", dtype=torch.uint8)


def test_quantized_tensors_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="aten::quantize_per_tensor has no stand-in"):
        torch.quantize_per_tensor(torch.ones(3, device="cuda"), 0.1, 0, torch.qint8)


def test_kernels_that_nobody_checks_raise_when_their_results_are_waited_for() -> None:
    """Padding a nested tensor launches a kernel by itself, and does not check for errors."""
    program = """
    import torch

    pieces = [torch.ones(size, device="cuda") for size in (3, 5)]
    padded = torch.nested.as_nested_tensor(pieces).to_padded_tensor(-1.0)
    try:
        padded.cpu()
    except RuntimeError as error:
        assert "add_padding" in str(error), error
        assert "is not emulated" in str(error), error
    else:
        raise AssertionError(padded)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mixed_devices_raise() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="cuda") + torch.ones(3)
