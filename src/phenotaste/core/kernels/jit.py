"""How numba compiles the kernels.

A *kernel* is called from Python: compiled to machine code, which is cached. A *part* is called by kernels and by other
parts only: it is typed once, and optimised as a piece of every kernel that calls it. By default numba would optimise
each part on its own and again in each of its callers, one inside the other, which takes several times as long.

By default loops are neither unrolled nor vectorised by LLVM: those that matter are written in vectors (`simd`), and for
rows of 10 or 40 numbers the code that LLVM adds for remainders costs more time than it saves, compiling and running.

Besides `simd` this is the only module that uses private parts of numba; `tests/core/test_numba_private.py` names the
one that is missing from an incompatible version.
"""

import ctypes
import gc
import hashlib
import pickle
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import njit
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, PassManager, register_pass
from numba.core.serialize import dumps
from numba.core.typed_passes import AnnotateTypes

from phenotaste.core.kernels.kernel_cache import CACHE

# Compiled loops may fuse and reorder sums. NaN and infinity keep their meaning.
FASTMATH = {"contract", "reassoc"}

# A division by zero is infinite or NaN and raises nothing.
COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

DIGITS = 20  # of a digest in the name of a cached file

# What Python gets to call in place of a part: a function of the same C signature, which raises a TypeError.
NOT_CALLABLE = ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p).value


def kernel(
    function: Callable[..., Any] | None = None,
    *,
    allocates: bool = False,
    autovectorize: bool = False,
    fastmath: set[str] | bool = False,
) -> Any:
    """Compile a function that Python calls; without the interpreter lock, and cached.

    Without `allocates` it can create no arrays, and is spared numba's atomic reference counts of every array in every
    record: the patient step takes a fifth less time. With `autovectorize` LLVM vectorises and unrolls its loops.
    """

    options: dict[str, Any] = {
        "pipeline_class": AutovectorizingCompiler if autovectorize else KernelCompiler,
        "no_cfunc_wrapper": True,
        "fastmath": fastmath,
        "_nrt": allocates,
    }

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher: Any = njit(**COMMON, **options)(function)
        if CACHE:
            dispatcher._cache = KernelCache(function)
        return dispatcher

    return decorate if function is None else decorate(function)


def part(
    function: Callable[..., Any] | None = None,
    *,
    inline: bool = False,
    allocates: bool = False,
    fastmath: set[str] | bool = False,
) -> Any:
    """Compile a function as a part of the kernels that call it."""
    options: dict[str, Any] = {
        "pipeline_class": PartCompiler,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "forceinline": inline,
        "fastmath": fastmath,
        "_nrt": allocates,
    }

    def decorate(function: Callable[..., Any]) -> Any:
        return njit(**COMMON, **options)(function)

    return decorate if function is None else decorate(function)


listeners: list[Callable[[], object]] = []


@contextmanager
def on_compile(listener: Callable[[], object]) -> Iterator[None]:
    """Call `listener` when a kernel has to be compiled, which takes seconds; not when it is read from the cache."""
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)


class KernelLibrary(JITCodeLibrary):
    """The code of a kernel with all its parts, optimised once.

    Parts that are not inlined have names of their own in each kernel. Otherwise a process would run the copy of the
    kernel that it loaded first, which may be vectorised: last digits would depend on what ran before.
    """

    autovectorize = False

    def add_ir_module(self, ir_module: Any) -> None:
        names = [function.name for function in ir_module.functions if not function.is_declaration]
        self._own_names = [*getattr(self, "_own_names", []), *names]
        super().add_ir_module(ir_module)

    def _rename_parts(self) -> None:
        suffix = hashlib.sha256(" ".join(self._own_names).encode()).hexdigest()[:DIGITS]
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in self._own_names:
                function.name = f"{function.name}.{suffix}"

    def _optimize_final_module(self) -> None:
        self._rename_parts()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_unrolling = options.loop_vectorization = self.autovectorize
        options.slp_vectorization = False
        builder = llvm.create_pass_builder(self._codegen._tm, options)
        passes = builder.getModulePassManager()
        passes.add_refprune_pass()
        passes.run(self._final_module, builder)


class AutovectorizedLibrary(KernelLibrary):
    autovectorize = True


class NoEnvironment:
    """In place of numba's code generator: a part has no machine code, so no Python objects belong to it."""

    def set_env(self, name: str, environment: Any) -> None:
        pass


class PartLibrary(JITCodeLibrary):
    """The code of a part, to be linked into kernels: neither optimised nor made executable by itself."""

    codegen = NoEnvironment()

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int | None:
        self._ensure_finalized()
        return NOT_CALLABLE


@register_pass(mutates_CFG=False, analysis_only=True)
class CreateKernelLibrary(LoweringPass):
    _name = "create_kernel_library"
    library: type[JITCodeLibrary] = KernelLibrary

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return False


@register_pass(mutates_CFG=False, analysis_only=True)
class CreateAutovectorizedLibrary(CreateKernelLibrary):
    _name = "create_autovectorized_library"
    library = AutovectorizedLibrary


@register_pass(mutates_CFG=False, analysis_only=True)
class CreatePartLibrary(CreateKernelLibrary):
    _name = "create_part_library"
    library = PartLibrary


class KernelCompiler(CompilerBase):
    """numba's own pipeline, with another library for the code."""

    create_library = CreateKernelLibrary
    announced = True

    def define_pipelines(self) -> list[PassManager]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(self.create_library, AnnotateTypes)
        passes.finalize()
        return [passes]

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile without collecting garbage, of which there is little among millions of objects: a fifth faster."""
        if self.announced:
            for listener in listeners:
                listener()
        enabled = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(function)
        finally:
            if enabled:
                gc.enable()


class AutovectorizingCompiler(KernelCompiler):
    create_library = CreateAutovectorizedLibrary


class PartCompiler(KernelCompiler):
    create_library = CreatePartLibrary
    announced = False


class KernelCache(FunctionCache):
    """numba's cache, valid for one state of the source of all parts: numba looks at the kernel's own file only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = KernelFiles(Path(self._cache_path), self._impl.filename_base)


class KernelFiles:
    """A file for each signature of a kernel, whose name is a digest of the source and of the signature.

    numba keeps an index of numbered files. It is written before the file that it names, so another process that
    compiles at the same time may run what was in the file before: the kernel of older source, or of other types.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def save(self, key: Any, data: Any) -> None:
        path = self._path(key)
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            draft.write_bytes(dumps((key, data)))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        for stale in set(self.folder.glob(f"{self.name}.*.nbc")) - set(self._current()):
            stale.unlink(missing_ok=True)

    def load(self, key: Any) -> Any:
        """What was saved with this key; None if nothing was, or if the file is damaged."""
        try:
            saved, data = pickle.loads(self._path(key).read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            return None
        return data if saved == key else None

    def flush(self) -> None:
        for path in self._current():
            path.unlink(missing_ok=True)

    def _current(self) -> Iterator[Path]:
        return self.folder.glob(f"{self.name}.{source_digest()}-*.nbc")

    def _path(self, key: Any) -> Path:
        signature = hashlib.sha256(repr(key).encode()).hexdigest()
        return self.folder / f"{self.name}.{source_digest()}-{signature[:DIGITS]}.nbc"


@cache
def source_digest() -> str:
    """A digest of the source that kernels are compiled from, and of numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    package = Path(__file__).parents[2]
    for path in sorted([*package.glob("core/**/*.py"), *package.glob("simulate/*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:DIGITS]
