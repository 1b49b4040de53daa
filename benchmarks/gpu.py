"""Time of the patient step on a GPU, compared with the CPU and with the limits of the device.

    make gpu                                   # from src/ with the python3 that has torch; installs nothing
    python -m benchmarks.gpu --only million    # one part: ceilings, agreement, middle, million, five, streaming

Cohorts are `simulate.ehr(50_000)` put one after the other: the patients repeat, which no patient's step can notice.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
from scipy import sparse

from phenotaste import TASTE, Cohort, simulate
from phenotaste.core import loop
from phenotaste.core.cuda.compile import shape_for
from phenotaste.core.init import init_model
from phenotaste.core.model_step import model_step
from phenotaste.engines.cuda import CudaSession, resident_bytes
from phenotaste.engines.threads import ThreadSession, one_blas_thread

PARTS = ("ceilings", "agreement", "middle", "million", "five", "streaming")
FLOOR = 0.1  # seconds: the upper end of method.md §8 for a million patients at R = 40


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--quick", action="store_true", help="a hundredth of the patients, to check the harness"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    facts = {"device": describe()}
    print(facts["device"], flush=True)
    tile = Tiles(500 if options.quick else 50_000)
    for part in options.only:
        began = time.perf_counter()
        facts[part] = globals()[part](tile, facts)
        print(f"{part} ({time.perf_counter() - began:.0f} s)")
        for name, value in facts[part].items():
            print(f"    {name:<44} {value:.4g}" if isinstance(value, float) else f"    {name:<44} {value}")
        print(end="", flush=True)
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1))


def describe():
    import torch

    gpu = torch.cuda.get_device_name()
    return f"{time.strftime('%Y-%m-%d')}, {gpu}, torch {torch.__version__}, CUDA {torch.version.cuda}"


class Tiles:
    """One cohort, simulated once and repeated."""

    def __init__(self, patients):
        self.patients, self._one = patients, None

    def cohort(self, times, patients=None):
        if self._one is None:
            self._one = simulate.ehr(self.patients, random_state=0)[0]
        one = self._one if patients is None else self._one[:patients]
        visits, lengths = one.visits, np.diff(one.offsets)
        indptr = np.concatenate([[0], np.cumsum(np.tile(np.diff(visits.indptr), times), dtype=np.int64)])
        matrix = sparse.csr_array((0, one.shape[1]), dtype=np.float32)
        matrix.data, matrix.indices = np.tile(visits.data, times), np.tile(visits.indices, times)
        matrix.indptr = indptr
        matrix = sparse.csr_array((matrix.data, matrix.indices, indptr), (len(indptr) - 1, one.shape[1]))
        matrix.has_canonical_format = True
        offsets = np.concatenate([[0], np.cumsum(np.tile(lengths, times))])
        return Cohort(matrix, offsets, np.tile(one.static, (times, 1)))


def prepared(cohort, rank, device, n_jobs=None, **settings):
    """An initialised engine with the cohort, and its initial model."""
    model = TASTE(rank, device=device, n_jobs=n_jobs, init="random", random_state=0, **settings)
    aligned = model._read(cohort)
    engine = model._open(model._engine(), aligned, cohort)
    start = init_model("random", aligned.shard, cohort.shape[1], rank, True, np.random.default_rng(0))
    engine.init_U(start)
    return engine, start


def synchronise():
    import torch

    torch.cuda.synchronize()


def seconds_of_iterations(engine, model, iterations):
    """Complete iterations including the model step, with extrapolation, as in the middle of a fit."""
    took = []
    for n in range(iterations + 2):
        synchronise()
        began = time.perf_counter()
        sums = engine.step(model, 0.5 if n else 0.0)
        with one_blas_thread():
            model, loss = model_step(sums, model, engine.weights.lam, normalize=True, exact=False)
        took.append(time.perf_counter() - began)
        assert np.isfinite(loss)
    return statistics.median(took[2:]), took


def timed(work, repetitions=5):
    import torch

    times = []
    for _ in range(repetitions + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times[1:])


def ceilings(tile, facts):
    """Peak rates of the device: a large copy, and large products."""
    import torch

    source = torch.rand(2**29, device="cuda")
    target = torch.empty_like(source)
    found = {"copy, bytes read and written a second": 2 * source.nbytes / timed(lambda: target.copy_(source))}
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        a = torch.rand((8192, 8192), device="cuda", dtype=dtype)
        found[f"{name} product, flop a second"] = 2 * 8192**3 / timed(lambda a=a: a @ a)
    host = torch.empty(2**28, dtype=torch.float32, pin_memory=True)
    found["host to device, bytes a second"] = host.nbytes / timed(lambda: host.to("cuda", non_blocking=True))
    return found


def agreement(tile, facts):
    """Fifty iterations from the same initial model, in float32 on the device and float64 on the CPU."""
    found = {}
    for rank, patients in ((10, 4000), (40, 2000)):
        cohort = tile.cohort(1, min(patients, tile.patients))
        curves = {}
        for device in ("cpu", "cuda"):
            engine, model = prepared(cohort, rank, device)
            with one_blas_thread():
                fit = loop.fit(engine, model, normalize=True, exact=False, max_iter=50, tol=0)
            curves[device] = np.array(fit.losses)
        apart = np.abs(curves["cuda"] / curves["cpu"] - 1)
        plain = plain_losses(cohort, rank)
        found[f"R={rank}: relative difference after 50"] = float(apart[-1])
        found[f"R={rank}: largest on the way"] = float(apart.max())
        found[f"R={rank}: largest rise of 50 plain steps"] = float(np.max(np.diff(plain) / plain[:-1]))
    return found


def plain_losses(cohort, rank):
    """The objective after each of fifty steps without extrapolation, so that none is rejected."""
    engine, model = prepared(cohort, rank, "cuda")
    losses = []
    for _ in range(50):
        sums = engine.step(model, 0.0)
        model, loss = model_step(sums, model, engine.weights.lam, normalize=True, exact=False)
        losses.append(loss)
    return np.array(losses)


def middle(tile, facts):
    """The paper's largest set: 151 349 patients at R = 40, compared with two threads of the CPU."""
    cohort = tile.cohort(3) if tile.patients < 50_000 else tile.cohort(4)[:151_349]
    engine, model = prepared(cohort, 40, "cuda")
    gpu, _ = seconds_of_iterations(engine, model, 8)
    engine, model = prepared(cohort, 40, "cpu", n_jobs=2)
    assert isinstance(engine, ThreadSession)
    cpu, _ = seconds_of_iterations(engine, model, 2)
    return {
        "patients": len(cohort),
        "GPU, seconds an iteration": gpu,
        "two threads, seconds an iteration": cpu,
        "times faster": cpu / gpu,
    }


def million(tile, facts):
    cohort = tile.cohort(20)
    rank = 40
    began = time.perf_counter()
    engine, model = prepared(cohort, rank, "cuda")
    synchronise()
    loading = time.perf_counter() - began
    seconds, took = seconds_of_iterations(engine, model, 20)
    parts = parts_of(engine, model)
    found = sizes(cohort) | {
        "seconds to load and start": loading,
        "first iteration, compiling included": took[0],
        "seconds an iteration": seconds,
        **parts,
        **rates(cohort, rank, engine, seconds, facts.get("ceilings", {})),
        "times the floor of 0.1 s": seconds / FLOOR,
        "GiB on the device": engine.bytes_needed / 2**30,
    }
    began = time.perf_counter()
    engine.score(model)
    found["seconds of the closing look, courses fetched"] = time.perf_counter() - began
    began = time.perf_counter()
    rng = np.random.default_rng(0)
    init_model("nmf", engine.shard, cohort.shape[1], rank, True, rng, engine.weights.scale)
    found["seconds of the NMF that a fit starts from"] = time.perf_counter() - began
    del engine
    began = time.perf_counter()
    stamps = []
    fitted = TASTE(
        rank,
        n_init=1,
        device="cuda",
        tol=1e-4,
        random_state=0,
        callback=lambda _: stamps.append(time.perf_counter()),
    ).fit(cohort)
    ended = time.perf_counter()
    found |= {
        "fit to 1e-4 from one start, seconds": ended - began,
        "of it up to the first iteration's end": stamps[0] - began,
        "of it from the last iteration's end": ended - stamps[-1],
        "fit to 1e-4, iterations": fitted.n_iter_,
        "outcome": fitted.outcome_,
        "RMSE": fitted.rmse_,
        "CPI": fitted.cpi_,
    }
    return found


def parts_of(engine, model):
    """Seconds of the two parts of the kernels, and of the model step."""
    import torch

    sums = engine.step(model, 0.5)
    began = time.perf_counter()
    with one_blas_thread():
        model_step(sums, model, engine.weights.lam, normalize=True, exact=False)
    model_seconds = time.perf_counter() - began
    events, launch = [], engine.launcher.patients

    def marked(mode, task):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch(mode, task)
        end.record()
        events.append((begin, end))

    engine.launcher.patients = marked
    engine.step(model, 0.5)
    synchronise()
    engine.launcher.patients = launch
    kernel = sum(begin.elapsed_time(end) for begin, end in events) / 1e3
    return {"of it the patients' kernel": kernel, "of it the model step": model_seconds}


def rates(cohort, rank, engine, seconds, ceilings):
    """Minimum bytes moved and multiply-adds, per second of measured time."""
    visits, entries, K = cohort.n_visits, cohort.visits.nnz, len(cohort)
    moved = visits * rank * 4 * 4 + entries * (2 * 8 + 4 * rank) + visits * 8 + K * rank * 8 * 4
    squares, cubes = visits * rank**2, K * rank**3
    double = 2 * (
        4 * squares + 7 * cubes + K * 16 * rank**2
    )  # G, U T, UᵀU, (QH)ᵀU; products, reductions; poles
    single = 2 * (3 * squares)
    found = {
        "bytes a second": moved / seconds,
        "flop a second, float64": double / seconds,
        "flop a second, float32": single / seconds,
    }
    if ceilings:
        found["share of the copy's bytes"] = (
            moved / seconds / ceilings["copy, bytes read and written a second"]
        )
        found["share of the float64 product's flop"] = (
            double / seconds / ceilings["float64 product, flop a second"]
        )
    tile = shape_for(rank).tile
    lengths = np.diff(cohort.offsets)
    found["idle rows of the visit tiles"] = float(1 - lengths.sum() / (-(-lengths // tile) * tile).sum())
    return found


def sizes(cohort):
    return {"patients": len(cohort), "visits": cohort.n_visits, "non-zeros": int(cohort.visits.nnz)}


def five(tile, facts):
    cohort = tile.cohort(100)
    engine, model = prepared(cohort, 10, "cuda")
    seconds, _ = seconds_of_iterations(engine, model, 5)
    return sizes(cohort) | {"rank": 10, "streamed": engine.streaming, "seconds an iteration": seconds}


def streaming(tile, facts):
    """A cohort with a third of the memory it needs, compared with the same cohort resident on the device."""
    cohort, rank = tile.cohort(10), 20
    kept, model = prepared(cohort, rank, "cuda")
    allowed = resident_bytes(kept.shard, rank) / 3
    streamed = CudaSession(kept.shard, kept.weights, rank, cohort.shape[1], memory=allowed)
    streamed.init_U(model)
    assert streamed.streaming
    assert not kept.streaming
    at_home, _ = seconds_of_iterations(kept, model, 4)
    far, _ = seconds_of_iterations(streamed, model, 4)
    a, b = kept.score(model), streamed.score(model)
    return sizes(cohort) | {
        "chunks": len(streamed.chunks),
        "GiB allowed": allowed / 2**30,
        "seconds an iteration, kept": at_home,
        "seconds an iteration, streamed": far,
        "largest difference of a course": float(np.abs(a.U - b.U).max()),
        "relative difference of the objective": float(abs(a.loss.sum() / b.loss.sum() - 1)),
    }


if __name__ == "__main__":
    main()
