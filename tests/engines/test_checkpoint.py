"""Interrupted fits that are resumed: the same model to the bit, and the handling of torn and foreign files."""

import os
import warnings
from functools import partial

import numpy as np
import pytest

from helpers.cohorts import cohort
from helpers.fits import assert_same
from helpers.interrupted import StopAfter, StoppedError, flip_a_bit, small_disk
from phenotaste import TASTE, metrics
from phenotaste.engines import Checkpoint, DiskEngine, EngineSession, ThreadEngine, checkpoint
from phenotaste.engines.threads import ThreadSession
from phenotaste.errors import InputError

OPTIONS = {"rank": 4, "n_init": 1, "init": "random", "max_iter": 10, "tol": 0, "random_state": 0}


def in_memory(folder, **options):
    return {"checkpoint": Checkpoint(folder, **{"every": 2} | options)}


def on_disk(folder, **options):
    return {"engine": DiskEngine(folder)} | in_memory(folder, **options)


engines = pytest.mark.parametrize("engine", [in_memory, on_disk], ids=["memory", "disk"])


@pytest.fixture(scope="module")
def patients():
    return cohort(0, n_patients=60, visits=(0, 30), n_features=9)


@pytest.fixture(scope="module")
def uninterrupted(patients):
    return TASTE(**OPTIONS).fit(patients)


def interrupt(patients, engine, after, **options):
    with pytest.raises(StoppedError):
        TASTE(**OPTIONS | options, **engine, callback=StopAfter(after)).fit(patients)


def resume(patients, engine, **options):
    """The model, the number of iterations that were left, and the warnings."""
    count = StopAfter()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = TASTE(**OPTIONS | options, **engine, callback=count).fit(patients)
    return found, count.seen, " ".join(str(note.message) for note in warned)


@engines
@pytest.mark.parametrize("after", [3, 4, 8])
def test_it_resumes_from_the_last_checkpoint_to_the_same_bits(
    patients, uninterrupted, engine, after, tmp_path
):
    interrupt(patients, engine(tmp_path / "work"), after)
    found, iterations, warned = resume(patients, engine(tmp_path / "work", resume=True))
    assert_same(found, uninterrupted)
    assert iterations == 10 - (after - 1) // 2 * 2
    assert warned == ""
    assert not (tmp_path / "work").exists()


@engines
@pytest.mark.parametrize("after", [9, 15, 27])
@pytest.mark.parametrize("objective", ["relative", "paper"])
def test_with_several_starts_the_best_so_far_is_restored(patients, engine, after, objective, tmp_path):
    options = {"n_init": 3, "objective": objective, "init": "short_fits"}
    expected = TASTE(**OPTIONS | options).fit(patients)
    interrupt(patients, engine(tmp_path / "work"), after, **options)
    found, iterations, _ = resume(patients, engine(tmp_path / "work", resume=True), **options)
    assert_same(found, expected)
    assert iterations <= 30 - after + 3


@engines
def test_repeated_interruptions_do_not_change_the_result(patients, uninterrupted, engine, tmp_path):
    for _ in range(4):
        interrupt(patients, engine(tmp_path / "work", resume=True), 3)
    found, iterations, _ = resume(patients, engine(tmp_path / "work", resume=True))
    assert_same(found, uninterrupted)
    assert iterations == 2


@engines
def test_a_random_state_of_none_is_checkpointed(patients, engine, tmp_path):
    """Seeds drawn from the system's chance are those of the checkpoint."""
    options = {"random_state": None, "n_init": 2}
    interrupt(patients, engine(tmp_path / "work"), 5, **options)
    first = kept(tmp_path / "work")["seeds"]
    interrupt(patients, engine(tmp_path / "work", resume=True), 14, **options)
    assert np.array_equal(kept(tmp_path / "work")["seeds"], first)


def kept(folder):
    from phenotaste.storage import tensors

    found = [tensors.read(path, checkpoint.STATE_KIND) for path in folder.glob("state-*")]
    return max(found, key=lambda read: read[1]["number"])[0]["state"]


def newest(folder, kind="state"):
    return max(folder.glob(f"{kind}-*"), key=lambda path: path.stat().st_mtime_ns)


@engines
def test_short_fits_write_nothing(patients, engine, tmp_path):
    TASTE(**OPTIONS, **engine(tmp_path / "work", every=None)).fit(patients)
    seen = []
    look = lambda progress: seen.extend(tmp_path.glob("work/state-*"))  # noqa: E731
    TASTE(**OPTIONS, **engine(tmp_path / "work", every=None), callback=look).fit(patients)
    assert seen == []
    assert not (tmp_path / "work").exists()


def test_minutes_are_minutes(patients, tmp_path):
    engine = in_memory(tmp_path / "work", every=None, minutes=0.0)
    interrupt(patients, engine, 3)
    assert len(kept(tmp_path / "work")["losses"]) == 2


@engines
def test_checkpoints_are_private(patients, engine, tmp_path):
    interrupt(patients, engine(tmp_path / "work"), 5)
    assert (tmp_path / "work").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "work").rglob("*"))


@engines
def test_a_torn_state_is_detected_and_the_previous_one_used(patients, uninterrupted, engine, tmp_path):
    interrupt(patients, engine(tmp_path / "work"), 7)
    torn = newest(tmp_path / "work") / "state.safetensors"
    os.truncate(torn, torn.stat().st_size // 2)
    found, iterations, warned = resume(patients, engine(tmp_path / "work", resume=True))
    assert "damaged" in warned
    assert "iteration 4" in warned
    assert iterations == 6
    if engine is in_memory:  # which keeps the courses of both
        assert_same(found, uninterrupted)
    else:
        assert "rebuilt" in warned
        assert found.loss_curve_[-1] < 1.02 * uninterrupted.loss_curve_[-1]


@pytest.mark.parametrize("harm", ["flip", "cut", "lose"])
def test_damaged_courses_in_memory_fall_back_to_the_previous_checkpoint(
    patients, uninterrupted, harm, tmp_path
):
    interrupt(patients, in_memory(tmp_path / "work"), 7)
    damage(newest(tmp_path / "work", "snapshot") / "current.safetensors", harm)
    found, iterations, warned = resume(patients, in_memory(tmp_path / "work", resume=True))
    assert "damaged" in warned
    assert iterations == 6
    assert_same(found, uninterrupted)


@pytest.mark.parametrize("harm", ["flip", "cut", "lose"])
def test_damaged_courses_on_disk_are_rebuilt(patients, uninterrupted, harm, tmp_path):
    interrupt(patients, on_disk(tmp_path / "work"), 7)
    for path in (tmp_path / "work").glob("courses-*.bin"):
        damage(path, harm)
    found, iterations, warned = resume(patients, on_disk(tmp_path / "work", resume=True))
    assert "rebuilt" in warned
    assert iterations == 4
    assert found.loss_curve_[-1] == pytest.approx(uninterrupted.loss_curve_[-1], rel=0.02)
    assert np.array_equal(found.loss_curve_[:6], uninterrupted.loss_curve_[:6])
    assert not (tmp_path / "work").exists()


@engines
def test_losing_all_courses_keeps_the_best_start(patients, engine, tmp_path):
    options = {"n_init": 2}
    expected = TASTE(**OPTIONS | options).fit(patients)
    interrupt(patients, engine(tmp_path / "work"), 17, **options)
    for pattern in ("snapshot-*/*.safetensors", "courses-*.bin"):
        for path in (tmp_path / "work").glob(pattern):
            path.unlink()
    found, iterations, warned = resume(patients, engine(tmp_path / "work", resume=True), **options)
    assert "rebuilt" in warned
    assert iterations == 4
    assert found.loss_curve_[-1] == pytest.approx(expected.loss_curve_[-1], rel=0.02)


def damage(path, harm):
    if harm == "flip":
        flip_a_bit(path)
    elif harm == "cut":
        os.truncate(path, path.stat().st_size - 8)
    else:
        path.unlink()


def test_only_the_damaged_chunk_is_rebuilt(patients, monkeypatch, tmp_path):
    from phenotaste.engines import disk

    monkeypatch.setattr(disk, "CHECKSUM_VISITS", 64)
    monkeypatch.setattr(disk, "CHUNK_VISITS", 16)
    interrupt(patients, on_disk(tmp_path / "work"), 7)
    for path in (tmp_path / "work").glob("courses-*.bin"):
        flip_a_bit(path)
    seen = []
    projected = disk.ThreadSession._project

    def watch(session, model, tol, max_iter, selected):
        offsets = session.shard.offsets
        before = session.U.copy()
        projected(session, model, tol, max_iter, selected)
        seen.append((np.flatnonzero((before != session.U).any(axis=1)), offsets[-1]))

    monkeypatch.setattr(disk.ThreadSession, "_project", watch)
    resume(patients, on_disk(tmp_path / "work", resume=True))
    ((changed, visits),) = seen
    assert 0 < len(changed) < visits / 3
    assert changed.min() <= visits / 2 <= changed.max()


@engines
def test_without_a_readable_checkpoint_it_starts_again(patients, uninterrupted, engine, tmp_path):
    interrupt(patients, engine(tmp_path / "work"), 7)
    for path in (tmp_path / "work").glob("state-*"):
        flip_a_bit(path / "state.safetensors")
    found, iterations, warned = resume(patients, engine(tmp_path / "work", resume=True))
    assert "starts from the beginning" in warned
    assert iterations == 10
    assert_same(found, uninterrupted)


@engines
def test_nothing_to_resume_is_reported(patients, uninterrupted, engine, tmp_path):
    found, iterations, warned = resume(patients, engine(tmp_path / "work", resume=True))
    assert "starts from the beginning" in warned
    assert iterations == 10
    assert_same(found, uninterrupted)


@engines
def test_a_new_fit_does_not_overwrite_a_checkpoint(patients, engine, tmp_path):
    interrupt(patients, engine(tmp_path / "work"), 5)
    with pytest.raises(InputError, match="interrupted fit: resume it"):
        TASTE(**OPTIONS, **engine(tmp_path / "work")).fit(patients)
    assert len(kept(tmp_path / "work")["losses"]) == 4


@engines
@pytest.mark.parametrize(
    "other",
    [{"rank": 3}, {"lam": 0.2}, {"random_state": 1}, {"smooth": 0.1}, {"objective": "paper"}],
    ids=str,
)
def test_another_fit_is_not_resumed(patients, engine, other, tmp_path):
    interrupt(patients, engine(tmp_path / "work"), 5)
    with pytest.raises(InputError, match=f"another {next(iter(other))}"):
        TASTE(**OPTIONS | other, **engine(tmp_path / "work", resume=True)).fit(patients)
    with pytest.raises(InputError, match="another cohort"):
        TASTE(**OPTIONS, **engine(tmp_path / "work", resume=True)).fit(patients[:-1])
    assert resume(patients, engine(tmp_path / "work", resume=True), n_jobs=1)[1] == 6


@engines
def test_two_fits_do_not_share_a_folder(patients, engine, tmp_path):
    refused = []

    def another(progress):
        if progress.iteration == 5:
            with pytest.raises(InputError, match="in use by another fit") as error:
                TASTE(**OPTIONS, **engine(tmp_path / "work", resume=True)).fit(patients)
            refused.append(error)

    TASTE(**OPTIONS, **engine(tmp_path / "work"), callback=another).fit(patients)
    assert len(refused) == 1


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_fit(patients, uninterrupted, tmp_path):
    with small_disk(tmp_path / "disk", "48k") as folder:
        found, iterations, warned = resume(patients, in_memory(folder / "work"))
        assert "could not be written, the fit continues" in warned
        assert "no space left" in warned
        assert iterations == 10
        assert_same(found, uninterrupted)


def test_a_full_disk_leaves_the_previous_checkpoint(patients, uninterrupted, tmp_path):
    with small_disk(tmp_path / "disk", "128k") as folder:  # room for one generation
        with pytest.warns(UserWarning, match="iteration 8 could not be written"):
            interrupt(patients, in_memory(folder / "work"), 9)
        found, iterations, _ = resume(patients, in_memory(folder / "work", resume=True))
        assert iterations == 8
        assert_same(found, uninterrupted)


def test_a_kept_checkpoint_stays_until_it_is_removed(patients, tmp_path):
    engine = on_disk(tmp_path / "work", keep=True)
    found = TASTE(**OPTIONS, **engine).fit(patients)
    assert engine["checkpoint"].exists()
    engine["checkpoint"].remove()
    assert not (tmp_path / "work").exists()
    assert np.isfinite(found.U_).all()  # its file has no name any more, and is still there


class WithoutSnapshots(ThreadEngine):
    """An engine whose sessions have only what `EngineSession` requires."""

    def open(self, *arguments, **options):
        session = super().open(*arguments, **options)
        session.enable_snapshots = partial(EngineSession.enable_snapshots, session)
        return session


def test_an_engine_that_cannot_resume_refuses_a_checkpoint_before_the_fit(patients, tmp_path):
    begun = []
    options = OPTIONS | {"engine": WithoutSnapshots(), "callback": begun.append}
    with pytest.raises(InputError, match="cannot resume a fit: leave out the checkpoint"):
        TASTE(**options, **in_memory(tmp_path / "work")).fit(patients)
    assert begun == []
    assert not (tmp_path / "work").exists()
    assert TASTE(**options).fit(patients).n_iter_ == 10


def test_a_fit_scores_the_patients_once_for_each_start(patients, monkeypatch):
    calls = []
    score = ThreadSession.score
    monkeypatch.setattr(ThreadSession, "score", lambda *given: calls.append(given) or score(*given))
    model = TASTE(**OPTIONS | {"n_init": 2}).fit(patients)
    assert len(calls) == 2
    assert model.rmse_ == metrics.rmse(model, patients)
    assert model.cpi_ == metrics.cpi(model)
