# SPDX-License-Identifier: Apache-2.0
"""Accesses that no op announces see and leave the right bytes, and are counted.

Every program here makes its tensors cold, checks that they are, and only then lets NumPy, the
kernel (write, readinto, sockets), serialisers or other processes access them. Their results, and
what an op reads afterwards, are compared with the bytes of stock PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]


# ---- NumPy, Python, ctypes ----------------------------------------------------------------------


def test_numpy_views_read_and_write(run_cold: Run) -> None:
    run_cold(
        """
        tensor, truth = make(1)
        view = tensor.numpy()
        chill(tensor)
        with counted(reads=1, writes=0):
            assert view.tobytes() == truth.tobytes()
            assert is_cold(tensor), "a read through a view does not fetch"
        assert same(tensor, truth) and not is_cold(tensor)

        chill(tensor)
        with counted(reads=0, writes=1):
            for place in (0, 1023, 1024, 150_000, view.size - 1):
                view[place] = truth[place] = place + 0.5
            assert is_cold(tensor)
            assert same(tensor, truth)

        chill(tensor)
        with counted(reads=0, writes=1):  # a page that was read and written counts as written
            np.multiply(view, 2, out=view)
            truth *= 2
            assert is_cold(tensor) and same(tensor, truth)
        chill(tensor)
        with counted(reads=0, writes=0):
            tensor.add_(1)
        truth += 1
        assert same(tensor, truth) and view.tobytes() == truth.tobytes()
        """
    )


def test_tolist_repr_and_item_are_announced_by_the_ops_they_begin_with(run_cold: Run) -> None:
    run_cold(
        """
        tensor, truth = make(2)
        for use in (
            lambda: tensor.tolist() == truth.tolist(),
            lambda: repr(tensor) == repr(torch.from_numpy(truth)),
            lambda: tensor[7].item() == truth[7],
            lambda: tensor.numpy().tobytes() == truth.tobytes(),
            lambda: np.asarray(tensor).sum() == truth.sum(),
        ):
            chill(tensor)
            with counted(reads=0, writes=0):
                assert use()
        """
    )


def test_ctypes_memoryview_dlpack_and_apply(run_cold: Run) -> None:
    run_cold(
        """
        import ctypes
        tensor, truth = make(3)
        raw = (ctypes.c_char * (4 * truth.size)).from_address(tensor.data_ptr())
        array = np.from_dlpack(tensor)
        view = memoryview(tensor.numpy()).cast("B")
        for read in (lambda: raw.raw, lambda: bytes(view), lambda: array.tobytes()):
            chill(tensor)
            with counted(reads=1, writes=0):
                assert read() == truth.tobytes()
        chill(tensor)
        with counted(reads=0, writes=1):
            ctypes.memset(tensor.data_ptr() + 4096, 0, 8192)
            truth.view(np.uint8)[4096:12288] = 0
            assert same(tensor, truth)
        chill(tensor)
        small = tensor[:1000]
        small.apply_(lambda x: x + 1)
        truth[:1000] += 1
        assert same(tensor, truth)
        """
    )


# ---- Files and serialisers ----------------------------------------------------------------------


def test_torch_save_and_load(run_cold: Run) -> None:
    run_cold(
        """
        import pickle
        tensor, truth = make(4)
        half = tensor[: truth.size // 2]
        for arguments in ({}, {"_use_new_zipfile_serialization": False}):
            chill(tensor)
            with counted(reads=0, writes=0):
                torch.save({"whole": tensor, "half": half}, "file.pt", **arguments)
                assert not is_cold(tensor), "it is announced"
            for mmap in (False, True) if not arguments else (False,):
                loaded = torch.load("file.pt", mmap=mmap)
                assert same(loaded["whole"], truth) and same(loaded["half"], truth[: half.numel()])
                assert loaded["whole"].data_ptr() == loaded["half"].data_ptr()
        chill(tensor)
        stream = io.BytesIO()
        with counted(reads=0, writes=0):
            torch.save(tensor, stream)
        stream.seek(0)
        assert same(torch.load(stream), truth)
        chill(tensor)
        with counted(reads=0, writes=0):
            data = pickle.dumps(tensor)
        assert same(pickle.loads(data), truth)
        """
    )


def test_loading_into_cold_parameters(run_cold: Run) -> None:
    run_cold(
        """
        weight, truth = make(5)
        torch.save({"weight": weight}, "file.pt")
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(make(6)[0])
        chill(module.weight)
        with counted(reads=0, writes=0):
            module.load_state_dict(torch.load("file.pt"))
        assert same(module.weight.detach(), truth)
        """
    )


def test_safetensors(run_cold: Run) -> None:
    run_cold(
        """
        from safetensors.torch import load, load_file, save, save_file
        first, first_truth = make(7)
        second, second_truth = make(8)
        tensors = {"first": first, "second": second}
        for write, read in (
            (lambda: save_file(tensors, "file.st"), lambda _: load_file("file.st")),
            (lambda: save(tensors), load),
        ):
            chill(first, second)
            with counted(reads=0, writes=0):
                written = write()
            loaded = read(written)
            assert same(loaded["first"], first_truth) and same(loaded["second"], second_truth)
        """
    )


def test_numpy_files(run_cold: Run) -> None:
    run_cold(
        """
        tensor, truth = make(9)
        view = tensor.numpy()
        for write, read in (
            (lambda: np.save("file.npy", view), lambda: np.load("file.npy")),
            (lambda: view.tofile("file.raw"), lambda: np.fromfile("file.raw", np.float32)),
        ):
            chill(tensor)
            with counted(reads=1, writes=0):
                write()
            assert read().tobytes() == truth.tobytes()
        """
    )


def test_the_kernel_reads_and_writes_cold_tensors(run_cold: Run) -> None:
    run_cold(
        """
        import socket, threading
        tensor, truth = make(10)
        other, other_truth = make(11)
        source, target = memoryview(tensor.numpy()).cast("B"), memoryview(other.numpy()).cast("B")
        descriptor = os.open("file.raw", os.O_RDWR | os.O_CREAT)
        chill(tensor, other)
        with counted(reads=1, writes=0):
            assert os.write(descriptor, source) == len(source)
            assert is_cold(tensor)
        assert open("file.raw", "rb").read() == truth.tobytes()

        chill(tensor, other)
        with counted(reads=0, writes=1):
            with open("file.raw", "rb", buffering=0) as file:
                assert file.readinto(target) == len(target)
            assert is_cold(other) and same(other, truth)
        chill(other)
        with counted(reads=0, writes=1):
            assert os.preadv(descriptor, [target[8192:12288]], 0) == 4096
            other_truth[:] = truth
            other_truth.view(np.uint8)[8192:12288] = truth.view(np.uint8)[:4096]
            assert same(other, other_truth)

        chill(tensor, other)
        left, right = socket.socketpair()
        with counted(reads=1, writes=1):
            sender = threading.Thread(target=left.sendall, args=(source,))
            sender.start()
            done = 0
            while done < len(target):
                done += right.recv_into(target[done:])
            sender.join()
            assert same(other, truth)
        """
    )


def test_subprocess_input_and_direct_file_io(run_cold: Run) -> None:
    run_cold(
        """
        import hashlib, subprocess
        tensor, truth = make(12)
        view = tensor.numpy()
        data = memoryview(view).cast("B")
        chill(tensor)
        with counted(reads=1, writes=0):
            done = subprocess.run(["sha256sum"], input=data, stdout=subprocess.PIPE, check=True)
        assert done.stdout.split()[0].decode() == hashlib.sha256(truth).hexdigest()
        # O_DIRECT pins the pages for the device: they must be the cold mapping's, page by page.
        bytes_whole = truth.nbytes // 4096 * 4096
        descriptor = os.open("file.raw", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        buffer = data[:bytes_whole]
        chill(tensor)
        assert os.pwritev(descriptor, [buffer], 0) == bytes_whole
        other, other_truth = make(13)
        target = memoryview(other.numpy()).cast("B")[:bytes_whole]
        chill(other)
        with counted(reads=0, writes=1):
            assert os.preadv(descriptor, [target], 0) == bytes_whole
            other_truth.view(np.uint8)[:bytes_whole] = truth.view(np.uint8)[:bytes_whole]
            assert same(other, other_truth)
        """
    )


# ---- Threads ------------------------------------------------------------------------------------


def test_a_writer_that_evictions_and_fetches_overtake_loses_nothing(run_cold: Run) -> None:
    """A thread increments through a view, without the GIL, while the tensor moves."""
    run_cold(
        """
        import threading
        tensor, truth = make(14)
        tensor.zero_()
        view = tensor.numpy()
        rounds, stop = 0, threading.Event()
        # The writer makes evictions give up, so it pauses for some.
        asks_for_pause, pauses, goes_on = (threading.Event() for _ in range(3))

        def write():
            global rounds
            while not stop.is_set():
                np.add(view, 1, out=view)  # NumPy gives up the GIL here
                rounds += 1
                if asks_for_pause.is_set():
                    asks_for_pause.clear()
                    pauses.set()
                    goes_on.wait()
                    goes_on.clear()

        writer = threading.Thread(target=write)
        writer.start()
        from cold import _library
        went_cold = 0
        for number in range(150):
            has_pause = number % 10 == 0
            if has_pause:
                asks_for_pause.set()
                pauses.wait()
                pauses.clear()
            went_cold += _library.tencache_evict_all()
            if has_pause:
                goes_on.set()
            tensor.data_ptr(), torch.numel(tensor)
            tensor[:1].clone()
        stop.set()
        writer.join()
        assert rounds > 10 and went_cold >= 15, (rounds, went_cold)
        assert same(tensor, np.full_like(truth, rounds)), (tensor.min(), tensor.max(), rounds)
        """
    )


def test_faulthandler_and_other_handlers_of_sigsegv(run_cold: Run) -> None:
    done = run_cold(
        """
        import ctypes, faulthandler, subprocess, sys
        tensor, truth = make(15)
        view = tensor.numpy()
        for all_threads in (True, False):
            # This replaces the handler, as pytest and DataLoader workers do.
            faulthandler.enable(all_threads=all_threads)
            chill(tensor)
            assert view.tobytes() == truth.tobytes()
            view[5] = truth[5] = 3
            assert same(tensor, truth)
        # A real crash is still faulthandler's to report.
        child = os.fork()
        if child == 0:
            ctypes.string_at(0)
        _, status = os.waitpid(child, 0)
        print("signal", os.WTERMSIG(status))
        """,
        PYTHONFAULTHANDLER="1",
    )
    assert "signal 11" in done.stdout
    assert "Fatal Python error: Segmentation fault" in done.stderr
