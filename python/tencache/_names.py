# SPDX-License-Identifier: Apache-2.0
"""Tells the core what the program calls its tensors, so that traces and reports can say it.

A name belongs to an extent, the memory that a tensor has. Several tensors in one extent (views of a
flat parameter) share a name that tells how many they are. A program gives names itself, by
`tencache.name_tensors`. With the option trace they are also found: after the first step of each
optimizer, which has made its state then, and at exit, for programs without one. The search goes
through all objects of the process, which takes some tenths of a second.

Nothing here imports torch. A tensor without memory of its own (a fake, a sparse one) has no name.
Threads: any.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tencache._import_hooks import when_imported
from tencache._library import Core
from tencache._messages import shortened

_OPTIMIZERS = "torch.optim.optimizer"
_HOOK = "register_optimizer_step_post_hook"


def pairs_of(named: object) -> list[tuple[str, Any]]:
    """What a program gives, a mapping or pairs, as pairs; raises TypeError if it is neither."""
    items = named.items() if isinstance(named, Mapping) else named
    # A tensor is an iterable too: of as many tensors as it has rows.
    if not isinstance(items, Iterable) or hasattr(items, "data_ptr"):
        raise _no_pairs(f"{type(named).__name__} is neither a mapping nor pairs")
    pairs = []
    for number, item in enumerate(items):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise _no_pairs(f"item {number} is a {type(item).__name__} and no pair")
        name, tensor = item
        if not isinstance(name, str):
            raise _no_pairs(
                f"the name of item {number}, {shortened(repr(name))}, is of type "
                f"{type(name).__name__} and not a text"
            )
        pairs.append((name, tensor))
    return pairs


def _no_pairs(reason: str) -> TypeError:
    return TypeError(
        f"tencache.name_tensors() takes names and tensors, but {reason}. Give it "
        "model.named_parameters(), or a mapping such as {'cache.keys': keys}."
    )


def name_tensors(core: Core, named: Iterable[tuple[str, Any]]) -> None:
    """Names the memory of each tensor."""
    by_address: dict[int, list[str]] = {}
    for name, tensor in named:
        address = _address(tensor)
        if address:
            by_address.setdefault(address, []).append(name)
    for address, names in by_address.items():
        others = f" (+{len(names) - 1})" if len(names) > 1 else ""
        core.name_extent(address, names[0] + others)


def install(core: Core) -> None:
    """Names what modules and optimizers hold, once the first step of each optimizer has ended."""
    when_imported(_OPTIMIZERS, _HOOK, lambda module: _register(module, core))


def name_modules(core: Core) -> None:
    """Names the parameters and buffers of every module that is alive."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):
        name_tensors(core, _of_modules(torch))


def _register(module: Any, core: Core) -> None:
    seen: set[int] = set()

    def after_step(optimizer: Any, _arguments: Any, _named: Any) -> None:
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling() or id(optimizer) in seen:
            return
        seen.add(id(optimizer))
        # Tensors, modules and optimizers of the program's own may raise anything, and a name is no
        # reason to fail.
        with contextlib.suppress(Exception):
            names = dict(_of_modules(torch))
            name_tensors(core, [*names.items(), *_of_optimizer(optimizer, names)])

    getattr(module, _HOOK)(after_step)


def _of_modules(torch: Any) -> Iterator[tuple[str, Any]]:
    modules = [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]
    inner = {id(child) for module in modules for child in _children(module)}
    outer = [module for module in modules if id(module) not in inner]
    for module in outer:
        # Where there are several models, each is named by its class.
        prefix = f"{type(module).__name__}." if len(outer) > 1 else ""
        for name, tensor in _of_module(module):
            yield prefix + name, tensor


def _children(module: Any) -> Iterable[Any]:
    children = vars(module).get("_modules")
    return children.values() if isinstance(children, dict) else ()


def _of_module(module: Any) -> list[tuple[str, Any]]:
    """The module's tensors by name; none if it is not whole yet, whatever it raises."""
    try:
        return [*module.named_parameters(), *module.named_buffers()]
    except Exception:  # The program's own code runs here, and a name is no reason to fail.
        return []


def _of_optimizer(optimizer: Any, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Gradients, and the state that the optimizer keeps, by the parameter that they belong to."""
    name_of = {id(tensor): name for name, tensor in names.items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = name_of.get(id(parameter), "parameter")
            if parameter.grad is not None:
                yield f"{name}.grad", parameter.grad
            for key, value in optimizer.state.get(parameter, {}).items():
                yield f"{name}.{key}", value


def _address(tensor: Any) -> int:
    """Where the tensor's memory begins; 0 for what has none."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except Exception:  # Parameters of a lazy module raise ValueError, for example.
        return 0
