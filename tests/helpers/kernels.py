"""Parts of the kernels as functions that Python can call."""

from phenotaste.core.kernels.jit import kernel


def compiled(part):
    """The part compiled as a kernel, with its own options."""
    options = {name: part.targetoptions[name] for name in ("fastmath",)}
    return kernel(part.py_func, allocates=True, **options)
