"""The private parts of numba that the kernels rely on, one test each, so that a failure names the part."""

import importlib
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.errors import NumbaError

import phenotaste

PRIVATE = [
    "numba.core.cgutils:get_or_insert_function",
    "numba.core.cgutils:unpack_tuple",
    "numba.core.imputils:lower_builtin",
    "numba.core.typing.templates:AbstractTemplate",
    "numba.core.typing.templates:infer_global",
    "numba.core.typing.templates:signature",
    "numba.core.base:BaseContext.cast",
    "numba.core.base:BaseContext.get_abi_sizeof",
    "numba.core.base:BaseContext.get_dummy_value",
    "numba.core.base:BaseContext.get_value_type",
    "numba.core.base:BaseContext.make_array",
    "numba.core.caching:FunctionCache",
    "numba.core.codegen:CodeLibrary.add_ir_module",
    "numba.core.codegen:CodeLibrary.codegen",
    "numba.core.codegen:CPUCodeLibrary._finalize_dynamic_globals",
    "numba.core.codegen:CPUCodeLibrary._finalize_final_module",
    "numba.core.codegen:CPUCodeLibrary._optimize_final_module",
    "numba.core.codegen:JITCodeLibrary.get_pointer_to_function",
    "numba.core.compiler:CompilerBase.compile_extra",
    "numba.core.compiler:DefaultPassBuilder.define_nopython_pipeline",
    "numba.core.compiler_machinery:LoweringPass",
    "numba.core.compiler_machinery:PassManager.add_pass_after",
    "numba.core.compiler_machinery:register_pass",
    "numba.core.serialize:dumps",
    "numba.core.typed_passes:AnnotateTypes",
]


def missing(symbol):
    return f"numba {numba.__version__} has no {symbol}: adapt core/kernels, or lower the bound on numba."


@pytest.mark.parametrize("symbol", PRIVATE)
def test_symbol_exists(symbol):
    module, path = symbol.split(":")
    try:
        value = importlib.import_module(module)
        for name in path.split("."):
            value = getattr(value, name)
    except (ImportError, AttributeError):
        pytest.fail(missing(symbol))


def test_option_nrt_disables_the_runtime_that_allocates():
    def allocate(n):
        return np.zeros(n).sum()

    try:
        assert numba.njit(_nrt=True)(allocate)(3) == 0.0
    except (KeyError, TypeError, ValueError):
        pytest.fail(missing("option _nrt"))
    with pytest.raises(NumbaError):
        numba.njit(_nrt=False)(allocate)(3)


def test_vectors_load_compute_and_store():
    from phenotaste.core.kernels import simd

    @numba.njit
    def run(x, out):
        simd.store(
            out, 0, simd.fma(simd.load(x, 0), simd.splat(2.0), simd.masked_load(x, 0, 3)) / simd.splat(2.0)
        )
        return simd.lane_sum(simd.load(out, 0))

    x, out = np.arange(8.0), simd.aligned_vector(8)
    total = run(x, out)
    np.testing.assert_array_equal(out, x + np.where(np.arange(8) < 3, x, 0.0) / 2)
    assert total == out.sum()


def test_private_parts_are_used_in_two_modules_only():
    root = Path(phenotaste.__file__).parent
    users = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in ("numba.core", '"_nrt"'))
    }
    assert users == {"core/kernels/jit.py", "core/kernels/simd.py"}
