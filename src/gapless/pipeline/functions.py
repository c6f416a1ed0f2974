"""A transform's Python function: found beside the definition, sent to the workers, told apart by its source.

The function's module, and what it imports from the same folder at its top, goes to Spark's workers by value:
nobody has to install it there. A change of any of these files is another version.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gapless.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NO_SESSION = "SESSION_OR_CONTEXT_NOT_EXISTS"
_folders: set[Path] = set()
"""Those from which functions were loaded, into this process."""


class WrongFunction(UsageError):
    """There is no such function, or it is none that a pipeline can call."""


class NeedsSpark(UsageError):
    """The module can be imported only where Spark runs: it has something like `@udf("string")` at its top."""


def load_function(name: str, folder: Path) -> tuple[Callable[[DataFrame], DataFrame], str]:
    """The function that `module:function` names, and the version of its source."""
    module_name, _, function_name = name.partition(":")
    module = _imported(module_name, folder.resolve())
    function = getattr(module, function_name, None)
    if function is None:
        offers = [
            each for each, value in vars(module).items() if inspect.isfunction(value) and each[0] != "_"
        ]
        known = f"; it has {', '.join(offers)}" if offers else ""
        raise WrongFunction(f"the module {module_name} has no function {function_name!r}{known}")
    if not callable(function):
        raise WrongFunction(f"{name} is no function, but {type(function).__name__}")
    _refuse_arguments(name, function)
    return function, _version(name, module, folder.resolve())


def raised_at(error: BaseException, folder: Path) -> str:
    """` (orders.py:12)`: the last line of the user's own code on the way to the error."""
    inside = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_within(Path(frame.filename), folder.resolve())
    ]
    return f" ({Path(inside[-1].filename).name}:{inside[-1].lineno})" if inside else ""


def _imported(name: str, folder: Path) -> ModuleType:
    _forget_namesakes(folder)
    _folders.add(folder)
    # It stays: the function may import more when it is called.
    sys.path[:] = [str(folder), *(each for each in sys.path if each != str(folder))]
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise WrongFunction(f"there is no module {name}, neither in {folder} nor installed") from None
        raise WrongFunction(f"cannot import {name}: {error}") from None
    except SyntaxError as error:
        raise WrongFunction(
            f"cannot import {name}: {error.msg} ({Path(error.filename or name).name}:{error.lineno})"
        ) from None
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        if _NO_SESSION in str(error):
            raise NeedsSpark(f"{name} can be imported only where Spark runs") from None
        place = raised_at(error, folder)
        raise WrongFunction(f"cannot import {name}: {type(error).__name__}{place}: {error}") from None
    _send_by_value(folder)
    return module


def _forget_namesakes(folder: Path) -> None:
    """Modules of another pipeline's folder are not meant where this folder has one of the same name."""
    for other in _folders - {folder}:
        for name in [name for name, module in sys.modules.items() if _is_of(name, module, other)]:
            top = name.partition(".")[0]
            if (folder / f"{top}.py").exists() or (folder / top).is_dir():
                del sys.modules[name]


def _send_by_value(folder: Path) -> None:
    from pyspark import cloudpickle

    register: Any = cloudpickle.register_pickle_by_value
    for module in _modules_of(folder):
        register(module)


def _modules_of(folder: Path) -> Iterator[ModuleType]:
    """The modules that lie in the folder itself, or in a package there."""
    for name, module in sorted(sys.modules.items()):
        if _is_of(name, module, folder):
            yield module


def _is_of(name: str, module: ModuleType, folder: Path) -> bool:
    """An environment inside the folder (.venv/lib/...) does not count: its modules have other names."""
    file = _file_of(module)
    if file is None or not _is_within(file, folder):
        return False
    top = name.partition(".")[0]
    return file.relative_to(folder).parts[0] in {top, f"{top}.py"}


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _is_within(path: Path, folder: Path) -> bool:
    return path.is_absolute() and path.is_relative_to(folder)


def _version(name: str, module: ModuleType, folder: Path) -> str:
    modules = {each.__name__: each for each in (module, *_modules_of(folder))}
    found = hashlib.sha256(name.encode())
    for _, each in sorted(modules.items()):
        file = _file_of(each)
        if file is not None and file.exists():
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


def _refuse_arguments(name: str, function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise WrongFunction(f"{name} must take one argument, the batch's rows, and return rows") from None
    except ValueError:  # built in: it has no signature, and says itself what it lacks
        return
