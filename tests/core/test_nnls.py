"""Both NNLS solvers against scipy's, on random and degenerate Gram matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from helpers.kernels import compiled
from phenotaste.core.kernels import nnls as kernels
from phenotaste.core.kernels.nnls import solve_rows_bpp, solve_rows_cd

lawson_hanson = compiled(kernels.lawson_hanson)


@st.composite
def problems(draw):
    """A Gram matrix and a right-hand side in its range, from a design that may be rank-deficient or badly scaled."""
    R = draw(st.integers(1, 8))
    rows = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["signed", "positive", "repeated", "dead", "scaled", "low rank", "zero"]))
    design = rng.standard_normal((rows, R))
    if kind != "signed":
        design = np.abs(design)
    if kind == "repeated":
        design[:, R // 2] = design[:, 0]
    if kind == "dead":
        design[:, R // 2] = 0
    if kind == "scaled":
        design *= 10.0 ** rng.integers(-4, 5, R)
    if kind == "low rank":
        design = design[:, :1] @ np.abs(rng.standard_normal((1, R)))
    if kind == "zero":
        design[:] = 0
    return design, rng.standard_normal(rows)


def solve(solver, design, target):
    G, b = design.T @ design, (design.T @ target)[None]
    x = np.zeros_like(b)
    solver(G, b, x)
    return x[0]


def descend_to_the_end(G, b, x):
    solve_rows_cd(G, b, x, 200_000, 1e-13)


def walk_from_zero(G, b, x):
    R = len(G)
    lawson_hanson(G, b[0], x[0], np.zeros(R, bool), np.zeros((R, R)), np.zeros(R, np.int64))


@pytest.mark.parametrize("solver", [solve_rows_bpp, descend_to_the_end, walk_from_zero])
@given(problem=problems())
def test_reaches_scipys_objective(solver, problem):
    design, target = problem
    x = solve(solver, design, target)
    assert np.all(x >= 0)
    assert np.all(np.isfinite(x))
    best = np.linalg.norm(design @ nnls(design, target)[0] - target) ** 2
    found = np.linalg.norm(design @ x - target) ** 2
    assert found <= best + 1e-9 * (target @ target)


@pytest.mark.parametrize("solver", [solve_rows_bpp, descend_to_the_end])
@given(seed=st.integers(0, 2**32 - 1), R=st.integers(1, 10))
def test_finds_scipys_solution_where_it_is_unique(solver, seed, R):
    rng = np.random.default_rng(seed)
    design = np.vstack([rng.standard_normal((R + 5, R)), 0.3 * np.eye(R)])
    target = rng.standard_normal(len(design))
    np.testing.assert_allclose(
        solve(solver, design, target), nnls(design, target)[0], rtol=1e-6, atol=1e-7 * np.linalg.norm(target)
    )


@given(seed=st.integers(0, 2**32 - 1), R=st.integers(1, 30))
def test_bpp_is_never_negative_or_nan(seed, R):
    """Also with a right-hand side outside the range, entries of very different size, and a warm start."""
    rng = np.random.default_rng(seed)
    design = rng.standard_normal((rng.integers(1, R + 2), R)) * 10.0 ** rng.integers(-8, 9, R)
    b = rng.standard_normal((3, R)) * 10.0 ** rng.integers(-8, 9, R)
    x = rng.standard_normal((3, R))
    solve_rows_bpp(design.T @ design, b, x)
    assert np.all(np.isfinite(x))
    assert np.all(x >= 0)


def test_coordinate_descent_never_raises_the_objective():
    rng = np.random.default_rng(0)
    for _ in range(50):
        design = np.abs(rng.standard_normal((6, 5)))
        G, b = design.T @ design, rng.standard_normal((1, 5))
        x = np.abs(rng.standard_normal((1, 5)))
        before = np.inf
        for _ in range(10):
            solve_rows_cd(G, b, x, 1, 0.0)
            now = 0.5 * x[0] @ G @ x[0] - b[0] @ x[0]
            assert now <= before + 1e-12
            before = now


def test_residues_of_cancellation_are_zero():
    """A coordinate whose best value is zero is exactly zero, not rounding noise that a later step could amplify."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        design = np.vstack([np.abs(rng.standard_normal((8, 6))), np.eye(6)])
        wanted = rng.uniform(0.5, 1.0, 6) * (rng.random(6) < 0.5)
        x = solve(solve_rows_bpp, design, design @ wanted)
        assert np.all((x == 0) | (x > 1e-9))
        np.testing.assert_allclose(x, wanted, rtol=0, atol=1e-9)


def test_bpp_does_not_depend_on_the_initial_passive_set():
    rng = np.random.default_rng(1)
    for _ in range(50):
        design = np.vstack([rng.standard_normal((12, 7)), 0.3 * np.eye(7)])
        target = rng.standard_normal(len(design))
        G, b = design.T @ design, np.tile(design.T @ target, (4, 1))
        x = np.array([np.zeros(7), np.ones(7), np.eye(7)[2], -np.ones(7)])
        solve_rows_bpp(G, b, x)
        np.testing.assert_allclose(x, np.tile(nnls(design, target)[0], (4, 1)), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("solver", [solve_rows_bpp, walk_from_zero])
def test_coordinates_that_must_leave_again(solver):
    """Nearly collinear columns: in almost half of these problems, coordinates that enter first have to leave later."""
    rng = np.random.default_rng(2)
    for _ in range(100):
        design = np.cumsum(rng.random((14, 10)), axis=1)
        target = design @ rng.random(10) + rng.standard_normal(14)
        x = solve(solver, design, target)
        assert np.all(x >= 0)
        np.testing.assert_allclose(x, nnls(design, target)[0], rtol=1e-6, atol=1e-8)
