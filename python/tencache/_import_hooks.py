# SPDX-License-Identifier: Apache-2.0
"""Calls back when a module is there: at once, or right after its import.

tencache patches a few functions of modules that most programs never import, so nothing here imports
them. A finder on sys.meta_path waits for such a module. It stays there until the module was
executed: a program may only look for the module's spec, or fail to import it and try again.

tencache itself may start while such a module is being imported, because the module imports torch.
Then no finder is asked any more, and the module's spec tells of the end of its import.

Either way the callback comes before the import counts as done, so no thread finds the module
unpatched. A callback that fails costs a warning, not the program's import.

Threads: any. _lock guards what the specs of modules under way have to call.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tencache._messages import say

_lock = threading.Lock()


@dataclass(frozen=True)
class _Wish:
    """A callback that gets the module, once that has the attribute."""

    name: str
    attribute: str
    callback: Callable[[ModuleType], None]

    def is_granted(self) -> bool:
        """Calls back if the module is there."""
        module = sys.modules.get(self.name)
        if module is None or not hasattr(module, self.attribute):
            return False
        try:
            self.callback(module)
        except Exception as error:
            say(
                f"warning: {self.name} is not as tencache knows it ({type(error).__name__}: "
                f"{error}), so what it does with tensors is not announced. Please report this."
            )
        return True

    def wait(self) -> None:
        sys.meta_path.insert(0, _ImportWatcher(self))


def when_imported(name: str, attribute: str, callback: Callable[[ModuleType], None]) -> None:
    """Calls back once with the module, when it has that attribute: now, or after its import."""
    wish = _Wish(name, attribute, callback)
    if wish.is_granted():
        return
    spec: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
    is_ours_to_change = type(spec) in (ModuleSpec, _WatchedSpec)
    if spec is None or not is_ours_to_change or not _WatchedSpec.watch(spec, wish):
        wish.wait()


class _WatchedSpec(ModuleSpec):
    """The spec of a module whose import is under way; ordinary again once the import ends.

    The import system sets `_initializing` to false at the end, whether it succeeded or failed.
    """

    @staticmethod
    def watch(spec: ModuleSpec, wish: _Wish) -> bool:
        """Makes the spec call back at the end of the import. False if none is under way."""
        with _lock:
            spec.__class__ = _WatchedSpec
            spec.__dict__.setdefault("_wishes", []).append(wish)
            # Had another thread ended the import before, nobody would look at the wish.
            if getattr(spec, "_initializing", False):
                return True
            _WatchedSpec._take_wishes(spec)
            return False

    @staticmethod
    def _take_wishes(spec: ModuleSpec) -> list[_Wish]:
        spec.__class__ = ModuleSpec
        wishes: list[_Wish] = spec.__dict__.pop("_wishes", [])
        return wishes

    def __setattr__(self, name: str, value: object) -> None:
        if name != "_initializing" or value:
            super().__setattr__(name, value)
            return
        while True:
            with _lock:
                wishes = _WatchedSpec._take_wishes(self)
                if not wishes:  # and none is added while the import still seems under way
                    object.__setattr__(self, name, value)
                    return
            for wish in wishes:
                if not wish.is_granted():
                    wish.wait()  # the import failed


class _ImportWatcher(MetaPathFinder):
    """Calls back once, right after the wanted module was executed. Then it leaves sys.meta_path."""

    def __init__(self, wish: _Wish) -> None:
        self._wish = wish

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        if fullname != self._wish.name or self not in finders:
            return None
        # The finders before this one have been asked already.
        for finder in finders[finders.index(self) + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(fullname, path, target) if find_spec else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _CallingLoader(spec.loader, self._on_executed)
                return spec
        return None

    def _on_executed(self, module: ModuleType) -> None:
        # A program may also execute a module of its own from this spec.
        if self in sys.meta_path and sys.modules.get(self._wish.name) is module:
            sys.meta_path.remove(self)
            self._wish.is_granted()


class _CallingLoader(Loader):
    """The module's own loader, with a callback after it has executed the module."""

    def __init__(self, loader: Loader, callback: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        """Answers callers that only inspect the module (get_source, ...)."""
        if name == "_loader":  # of an object that is being copied
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # Later readers (inspect, pickle, reload) must find the loader they know, although other
        # watchers may have wrapped it, too.
        loader = self._loader
        while isinstance(loader, _CallingLoader):
            loader = loader._loader
        module.__loader__ = loader
        if module.__spec__ is not None:
            module.__spec__.loader = loader
        self._callback(module)
