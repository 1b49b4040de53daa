"""Compile `patient_step.cu` for one rank on first use, with the compiler that torch ships, and launch it.

NVRTC and the CUDA driver are called through ctypes, so that nothing has to be installed or built.
"""

import ctypes
import sys
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

MODES = {"init": 0, "step": 1, "score": 2, "project": 3}
POLES = 32
GROUP = 8  # phenotypes whose columns are updated together
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
RESERVED = 1024  # bytes of shared memory that the system takes per block
MAX_THREADS = 65536 // 128  # per multiprocessor, with 128 registers each
SOURCE = Path(__file__).with_name("patient_step.cu")


class Shape(NamedTuple):
    """Launch configuration of a rank."""

    rank: int
    threads: int  # per block; a block processes one patient at a time
    tile: int  # visits at a time

    @property
    def scratch(self) -> int:
        """Doubles of scratch per block: SCRATCH of the kernel."""
        R, row, threads = self.rank, self.rank | 1, self.threads
        groups, warps = min(R, max(1, threads // R)), max(1, threads // 32)
        square = (R * (row if R > POLES else POLES + 1) + 1) // 2 * 2
        gram = R * (-(-R // GROUP) * GROUP)
        min_visits = 0 if R > 24 else 128
        body = max(
            4 * square,
            square + (self.tile * (3 * row + 1) + 3) // 4 * 2,
            (gram + min_visits * (2 * row + GROUP + 1) + 3) // 4 * 2,
            square + (min_visits * row + 1) // 2 * 2,
        )
        vectors = 7 * R + groups * R + 8 + warps
        return (body + vectors + (R + 8) // 2 + 2) // 2 * 2

    @property
    def sums(self) -> int:
        """Doubles of sums per block: SUMS of the kernel."""
        return 2 * self.rank**2 + 2


def shape_for(rank: int) -> Shape:
    threads = 32 if rank <= 16 else 64 if rank <= 32 else 128 if rank <= 42 else 256 if rank <= 85 else 512
    return Shape(rank, threads, min(threads, 64))


class Launcher:
    """The kernels of one rank on the current CUDA device."""

    def __init__(self, rank: int) -> None:
        import torch

        if rank > 256:
            raise ValueError("The kernels support ranks up to 256.")
        torch.cuda.init()
        self.shape = shape_for(rank)
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._arch = f"{properties.major}{properties.minor}"
        bytes_needed = 8 * self.shape.scratch
        self.in_global = bytes_needed > getattr(properties, "shared_memory_per_block_optin", 49152)
        held = 8 * self.shape.rank * self.shape.threads if self.in_global else bytes_needed
        fit = properties.shared_memory_per_multiprocessor // (held + RESERVED)
        self.at_once = max(1, min(fit, MAX_THREADS // self.shape.threads, 16))
        self.multiprocessors = properties.multi_processor_count
        self.blocks = self.at_once * self.multiprocessors
        self.shared_bytes = 0 if self.in_global else bytes_needed

    @cached_property
    def global_scratch(self) -> Any:
        """Scratch in global memory, for ranks whose scratch exceeds a multiprocessor's shared memory."""
        import torch

        return torch.empty(
            self.blocks * self.shape.scratch if self.in_global else 0, dtype=torch.float64, device="cuda"
        )

    def patients(self, mode: str, task: Any) -> None:
        kernel = self._kernel(MODES[mode], "patients", self.shared_bytes)
        self._launch(kernel, min(self.blocks, max(1, task.patients)), self.shared_bytes, [task])

    def gather(self, arguments: list[Any], segments: int) -> None:
        shared_bytes = 8 * self.shape.threads + 8 * self.shape.rank
        kernel = self._kernel(MODES["step"], "gather", shared_bytes)
        blocks = min(segments, 16 * self.blocks)
        self._launch(kernel, max(1, blocks), shared_bytes, [*arguments, ctypes.c_int(segments)])

    def combine(self, arguments: list[Any], features: int) -> None:
        kernel = self._kernel(MODES["step"], "combine", 0)
        self._launch(kernel, max(1, features), 0, [*arguments, ctypes.c_int(features)])

    def _kernel(self, mode: int, name: str, shared_bytes: int) -> ctypes.c_void_p:
        import torch

        device = (self.multiprocessors, self._arch, torch.cuda.current_device())
        key = (*self.shape, mode, self.at_once, self.in_global, *device)
        return function(module(key), name, shared_bytes)

    def _launch(self, kernel: ctypes.c_void_p, blocks: int, shared_bytes: int, arguments: list[Any]) -> None:
        import torch

        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        values = [ctypes.c_void_p(a.data_ptr()) if hasattr(a, "data_ptr") else a for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        threads = self.shape.threads
        check(
            driver().cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, pointers, None)
        )


@cache
def module(key: tuple[Any, ...]) -> ctypes.c_void_p:
    rank, threads, tile, mode, at_once, in_global, multiprocessors, arch, _ = key
    options = {"R": rank, "NT": threads, "TILE": tile, "MODE": mode, "BLOCKS_AT_ONCE": at_once}
    options["MULTIPROCESSORS"] = multiprocessors
    flags = [
        f"--gpu-architecture=sm_{arch}",
        "--std=c++17",
        *(f"-D{name}={value}" for name, value in options.items()),
    ]
    image = compile_source(
        SOURCE.read_text(encoding="utf-8"), [*flags, *(["-DIN_GLOBAL"] if in_global else [])]
    )
    loaded = ctypes.c_void_p()
    check(driver().cuModuleLoadData(ctypes.byref(loaded), image))
    return loaded


FUNCTIONS: dict[tuple[int | None, str], ctypes.c_void_p] = {}


def function(loaded: ctypes.c_void_p, name: str, shared_bytes: int) -> ctypes.c_void_p:
    key = (loaded.value, name)
    if key not in FUNCTIONS:
        kernel = ctypes.c_void_p()
        check(driver().cuModuleGetFunction(ctypes.byref(kernel), loaded, name.encode()))
        if shared_bytes:
            check(driver().cuFuncSetAttribute(kernel, MAX_DYNAMIC_SHARED, shared_bytes))
        FUNCTIONS[key] = kernel
    return FUNCTIONS[key]


def compile_source(source: str, flags: list[str]) -> bytes:
    """Machine code for the device."""
    nvrtc = compiler()
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"patient_step.cu", 0, None, None)
    options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    failed = nvrtc.nvrtcCompileProgram(program, len(flags), options)
    size = ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"The patient step could not be compiled for this GPU:\n{log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, image)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return image.raw


@cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@cache
def compiler() -> ctypes.CDLL:
    """NVRTC, loaded by torch already or installed in the same environment."""
    import torch

    major = str(torch.version.cuda).split(".")[0]
    packages = Path(torch.__file__).parents[1] / "nvidia"
    names = [f"libnvrtc.so.{major}", "libnvrtc.so", f"nvrtc64_{major}0_0.dll"]
    for path in [*names, *(str(path) for path in sorted(packages.glob(f"*/lib/libnvrtc.so.{major}*")))]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise OSError("NVRTC, the compiler that torch ships, was not found")


def check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"The GPU reported: {(text.value or b'an unknown error').decode()}")
