"""Resolves names in settings: a `module:function`, a device. Imports nothing heavy, because reward workers use it."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

from gspo.config.suggestions import nearest
from gspo.config.values import type_of
from gspo.safe import without_logins

if TYPE_CHECKING:
    import torch


def load_function(spec: str, key: str) -> Callable[..., Any]:
    """Imports the function that `spec` (`module:function`) names, from the current folder first (`find_here`). Raises
    ValueError, with the configuration key.
    """
    check_module(spec, key)
    module_name, _, name = spec.partition(":")
    try:
        find_here(module_name)
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script that calls sys.exit must not end the run as if it had finished
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(_no_module(spec, key)) from None
        raise ValueError(f"{key} = {spec!r}: importing {module_name!r} failed: {describe(error)}") from error
    function = getattr(module, name, None)
    if function is None:
        hint = nearest(name, [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")])
        if module_name in sys.stdlib_module_names:
            hint = "; it is a module of Python itself, so give a file of yours another name"
        raise ValueError(f"{key} = {spec!r}: {module_name} has no function {name!r}{hint}")
    if not callable(function):
        raise ValueError(f"{key} = {spec!r}: {name} is {type_of(function)}, not a function")
    return function


def check_module(spec: str, key: str) -> None:
    """Raises ValueError, as load_function does, if there is no such module or package. Imports nothing."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise ValueError(f"{key} = {spec!r}: expected module:function, such as rewards:score for score in rewards.py")
    if (path := module_name.removesuffix(".py")) != module_name:
        module = path.removeprefix("./").replace("/", ".")
        raise ValueError(f"{key} = {spec!r}: expected a module, not its file: write {module}:{name}")
    top = module_name.partition(".")[0]
    if top not in sys.modules and not PathFinder.find_spec(top, [os.getcwd()]) and not find_spec(top):
        raise ValueError(_no_module(spec, key))


def _no_module(spec: str, key: str) -> str:
    name = spec.partition(":")[0]
    return f"{key} = {spec!r}: there is no module {name!r} in {os.getcwd()} or among the installed packages"


def find_here(name: str) -> None:
    """Imports the top-level package or module of `name` from the current folder, if it is there, and appends the folder to
    sys.path for what that imports. Only the named module goes before installed packages, and none before the standard
    library: a stray pickle.py or yaml.py beside the data is not run. Raises what the module raises.
    """
    folder, top = os.getcwd(), name.partition(".")[0]
    if folder not in map(os.path.abspath, sys.path):
        sys.path.append(folder)
    if top in sys.modules or top in sys.stdlib_module_names:
        return
    spec = PathFinder.find_spec(top, [folder])
    if spec is None or spec.loader is None:
        return
    module = sys.modules[top] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(top, None)
        raise


def unknown_arguments(function: Callable[..., Any], arguments: dict[str, Any], *given: Any) -> str:
    """Why `function(*given, **arguments)` cannot be called; "" if it can."""
    try:
        inspect.signature(function).bind(*given, **arguments)
    except TypeError as error:
        return str(error)
    except ValueError:  # a builtin without a signature
        pass
    return ""


def describe(error: BaseException) -> str:
    """Formats an exception as one line of at most 300 characters, without secrets, because it may be written to any file."""
    text = without_logins(" ".join(str(error).split()))
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= 300 else f"{text[:200]} … {text[-97:]}"


def pick_device(name: str, key: str = "model.device") -> torch.device:
    """Returns the torch device that the option `key` names. Raises ValueError if this machine has no such device."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"(cpu|cuda|mps)(:(0|[1-9][0-9]?))?", name):
        raise ValueError(f"{key} = {name!r}: allowed are auto, cpu, cuda, cuda:1, mps")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        available = f"only {count} CUDA GPUs, counted from 0" if count else "no CUDA GPU that torch can use"
        raise ValueError(f'{key} = {name!r}: this machine has {available}; set {key} = "auto"')
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f'{key} = {name!r}: this machine has no MPS device; set {key} = "auto"')
    return device
