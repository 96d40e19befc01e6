"""What a setting names: a `module:function`, a device. Imports nothing heavy: the reward workers use it."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gspo.config.checks import nearest

if TYPE_CHECKING:
    import torch


def load_function(spec: str, key: str) -> Callable[..., Any]:
    """The function that `spec` (`module:function`) names; the current folder is searched first.

    `key` is the configuration key to name in errors. Raises ValueError when there is no such module or
    function.
    """
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise ValueError(f"{key} = {spec!r}: expected module:function, such as rewards:score for score in rewards.py")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ValueError(
                f"{key} = {spec!r}: there is no module {module_name!r} in {folder} or among the installed packages"
            ) from None
        raise ValueError(f"{key} = {spec!r}: importing {module_name!r} failed: {describe(error)}") from error
    except Exception as error:
        raise ValueError(f"{key} = {spec!r}: importing {module_name!r} failed: {describe(error)}") from error
    function = getattr(module, name, None)
    if function is None:
        names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ValueError(f"{key} = {spec!r}: {module_name} has no function {name!r}{nearest(name, names)}")
    if not callable(function):
        raise ValueError(f"{key} = {spec!r}: {name} is a {type(function).__name__}, not a function")
    return function


def unknown_arguments(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """Why `function(**arguments)` cannot be called, or an empty string."""
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        return str(error)
    except ValueError:  # a builtin without a signature
        pass
    return ""


def describe(error: BaseException) -> str:
    """An exception in one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def pick_device(name: str, key: str = "model.device") -> torch.device:
    """The option `key` as torch has it. Raises ValueError where this machine has no such device."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"{key} = {name!r}: allowed are auto, cpu, cuda, cuda:1, mps") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"{key} = {name!r}: allowed are auto, cpu, cuda, cuda:1, mps")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        available = f"only {count} CUDA GPUs, counted from 0" if count else "no CUDA GPU that torch can use"
        raise ValueError(f'{key} = {name!r}: this machine has {available}; set {key} = "auto"')
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f'{key} = {name!r}: this machine has no MPS device; set {key} = "auto"')
    return device
