"""What the page, figures and tables are made of: each number against a plain computation, and what must be hidden."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers import cohorts
from phenotaste import TASTE, Cohort, simulate
from phenotaste.disclosure import Gate, round_step
from phenotaste.errors import InputError
from phenotaste.patients import NO_PHENOTYPE, Patients
from phenotaste.report import content, model_figures, table_files
from phenotaste.report.courses import activity, mean_time, quantile, resampled, shown_points, smoothed
from phenotaste.report.definitions import map_positions
from phenotaste.report.names import static_label
from phenotaste.report.patients import patients_of
from phenotaste.review import Decision, Review, fingerprint


@pytest.fixture(scope="module")
def cohort():
    made, _ = simulate.heart_failure(400, random_state=2)
    origin = {
        "source": "omop",
        "location": "/secret/place/2011-02-03",
        "settings": {"values": "binary", "index_before": "2011-02-03"},
        "attrition": [
            {"step": "in the source", "patients": 900},
            {"step": "before 2011-02-03", "patients": 896},
            {"step": "at least 5 visits", "patients": 400},
        ],
    }
    return Cohort(
        made.visits,
        made.offsets,
        made.static,
        visit_times=made.visit_times,
        feature_names=made.feature_names,
        static_names=made.static_names,
        labels=made.labels,
        origin=origin,
    )


@pytest.fixture(scope="module")
def model(cohort):
    return TASTE(4, n_init=1, random_state=0, max_iter=60).fit(cohort)


@pytest.fixture(scope="module")
def built(model, cohort):
    return content.build(model, cohort)


@pytest.fixture(scope="module")
def open_built(model, cohort):
    return content.build(model, cohort, gate=Gate(trusted=True))


def shares_by_hand(model):
    found = np.zeros_like(model.W_)
    for k in range(len(found)):
        block = model.U_[model.offsets_[k] : model.offsets_[k + 1]]
        squares = (model.W_[k] * np.linalg.norm(block, axis=0)) ** 2
        if squares.sum() > 0:
            found[k] = squares / squares.sum()
    return found


def three(value):
    return pytest.approx(value, rel=0.006)


def test_content_is_json_with_its_kind(built, model):
    record = json.loads(json.dumps(built.as_dict(), allow_nan=False))
    assert record["format"] == 1
    assert record["fingerprint"] == fingerprint(model)
    assert record["min_cell_size"] == 11
    assert not record["trusted"]
    assert dict(record["overview"]["figures"])["Patients"] == "about 400"
    assert len(record["phenotypes"]) == 4
    assert record["review"] is None


def test_definitions_are_those_of_the_model(open_built, model):
    table = model.phenotypes(top=None, min_weight=0.001)
    for phenotype in open_built.phenotypes:
        for kind, named in (
            ("temporal", open_built.features.temporal),
            ("static", open_built.features.static),
        ):
            rows = table[(table["phenotype"] == phenotype.number) & (table["kind"] == kind)]
            weights = [(j, w) for j, w in getattr(phenotype, kind) if w >= 0.001]
            stripped = [name[3:] if kind == "temporal" else static_label(name) for name in rows["feature"]]
            assert [named[j].name for j, _ in weights] == stripped
            np.testing.assert_allclose([w for _, w in weights], rows["weight"], rtol=1e-3)
        column = model.V_[:, phenotype.number - 1]
        assert phenotype.mass.temporal == pytest.approx(column.sum() / model.V_.max(), rel=1e-3)
    groups = {feature.group for feature in open_built.features.temporal}
    assert groups == {"diagnosis", "medication"}


def test_rare_features_are_suppressed(model, cohort):
    heaviest = int(np.argmax(model.V_.max(axis=1)))
    changed = TASTE(4)
    vars(changed).update(vars(model))
    changed.feature_patients_ = model.feature_patients_.copy()
    changed.feature_patients_[heaviest] = 10
    shown = content.build(changed, cohort)
    assert model.feature_names_in_[heaviest][3:] not in json.dumps(shown.as_dict())
    assert max(w for p in shown.phenotypes for _, w in p.temporal) == 1.0
    rest = np.delete(model.V_, heaviest, axis=0)
    named = {feature.name for feature in shown.features.temporal}
    enough = np.array([name[3:] in named for name in np.delete(model.feature_names_in_, heaviest)])
    assert np.delete(changed.feature_patients_, heaviest)[enough].min() >= 11
    assert shown.phenotypes[0].mass.temporal == pytest.approx(
        rest[enough, 0].sum() / rest[enough].max(), rel=1e-3
    )
    assert any("patients of the fit have it" in s.reason for s in shown.audit)


def test_prevalence_leading_and_features(built, open_built, model, cohort):
    shares = shares_by_hand(model)
    leading = np.where(shares.any(axis=1), shares.argmax(axis=1), NO_PHENOTYPE)
    for r, phenotype in enumerate(open_built.phenotypes):
        assert phenotype.prevalence == three(np.mean(shares[:, r] >= 0.1))
        assert phenotype.leading.patients == np.sum(leading == r)
        assert abs(built.phenotypes[r].leading.patients - np.sum(leading == r)) < 5
        assert built.phenotypes[r].leading.patients % 5 == 0
    have = np.zeros(cohort.n_features)
    for k in range(len(cohort)):
        have += (cohort[k].visits.toarray() > 0).any(axis=0)
    for feature, count in zip(open_built.features.temporal, have, strict=True):
        assert feature.share == three(count / 400)
    for feature, share in zip(open_built.features.static, cohort.static.mean(axis=0), strict=True):
        assert feature.share == three(share)


def test_profile_and_outcome(open_built, model, cohort):
    leading = shares_by_hand(model).argmax(axis=1)
    names = [static_label(name) for name in cohort.static_names]
    for r, phenotype in enumerate(open_built.phenotypes):
        mine = leading == r
        found = {c.feature: c for c in phenotype.profile}
        assert set(names) | {"visits", "months of follow-up"} >= set(found)
        effects = [abs(c.effect or 0) for c in phenotype.profile]
        assert effects == sorted(effects, reverse=True)
        for name in set(found) - {"visits", "months of follow-up"}:
            here, rest = cohort.static[mine, names.index(name)], cohort.static[~mine, names.index(name)]
            assert found[name].leading == three(here.mean())
            assert found[name].rest == three(rest.mean())
            scale = np.sqrt((here.var() + rest.var()) / 2)
            if scale:
                assert found[name].effect == pytest.approx((here.mean() - rest.mean()) / scale, abs=0.006)
        visits = cohort.visit_counts
        assert found["visits"].leading == three(visits[mine].mean())
        months = [
            (times[-1] - times[0]) / np.timedelta64(1, "D") / (365.25 / 12)
            for times in (
                cohort.visit_times[a:b] for a, b in zip(cohort.offsets, cohort.offsets[1:], strict=False)
            )
        ]
        assert found["months of follow-up"].leading == three(np.mean(np.array(months)[mine]))
        a, b = np.sum(cohort.labels[mine] == 1), np.sum(cohort.labels[mine] == 0)
        c, d = np.sum(cohort.labels[~mine] == 1), np.sum(cohort.labels[~mine] == 0)
        link = phenotype.outcome
        assert link.leading == three(a / (a + b))
        if min(a, b, c, d):
            error = 1.96 * np.sqrt(1 / a + 1 / b + 1 / c + 1 / d)
            assert link.odds_ratio == three(a * d / (b * c))
            assert (link.low, link.high) == (
                three(a * d / (b * c) * np.exp(-error)),
                three(a * d / (b * c) * np.exp(error)),
            )


def test_courses(built, model, cohort):
    leading = shares_by_hand(model).argmax(axis=1)
    times, offsets = cohort.visit_times, cohort.offsets
    r = int(np.argmax(np.bincount(leading)))
    by_visit, by_month = {}, {}
    for k in np.flatnonzero(leading == r):
        course = model.scale_[k] * model.W_[k, r] * model.U_[offsets[k] : offsets[k + 1], r]
        month = ((times[offsets[k] : offsets[k + 1]] - times[offsets[k]]) / np.timedelta64(1, "D")) / (
            365.25 / 12
        )
        for i in range(len(course)):
            by_visit.setdefault(i + 1, []).append(np.mean(course[max(i - 2, 0) : i + 3]))
        for m in np.unique(np.floor(month)):
            by_month.setdefault(m, []).append(np.mean(course[np.floor(month) == m]))
    course = built.phenotypes[r].course
    for band, expected, first in ((course.visits, by_visit, 1), (course.months, by_month, 0)):
        top = max(band.high)
        assert (band.x[-1] - first + 1) % 5 == 0 or band.x[-1] - first < 5
        for i, x in enumerate(band.x):
            assert len(expected[x]) >= 11
            if len(expected[x]) >= 60:  # means of 11 patients around a quartile are close to it
                quartiles = np.quantile(expected[x], (0.25, 0.5, 0.75))
                np.testing.assert_allclose(
                    (band.low[i], band.median[i], band.high[i]), quartiles, atol=0.15 * top
                )


def test_points_of_a_band_are_means_of_eleven_patients():
    values = np.arange(100.0)
    for q, middle in ((0.25, 25.0), (0.5, 50.0), (0.75, 74.0)):
        (found,) = quantile(values, np.array([0]), np.array([100]), q, Gate())
        assert abs(found - middle) <= 1
    (found,) = quantile(values[:12], np.array([0]), np.array([12]), 0.75, Gate())
    assert found == values[1:12].mean()  # there are no more than these
    (found,) = quantile(values, np.array([0]), np.array([100]), 0.25, Gate(trusted=True))
    assert found == 25


def test_a_band_does_not_show_the_length_of_one_history():
    keys = np.concatenate([np.arange(n) for n in [23] * 30 + [40] * 8 + [97]])
    assert shown_points(keys, Gate()).max() + 1 == 20
    assert shown_points(keys, Gate(trusted=True)).max() + 1 == 97
    assert shown_points(np.repeat(np.arange(3), 30), Gate()).tolist() == [0, 1, 2]


def test_typical_courses_are_averages_of_thirds(built, model):
    patients = patients_of(model)
    leading = patients.leading()
    for r, phenotype in enumerate(built.phenotypes):
        led = np.flatnonzero(leading == r)
        assert [t.label for t in phenotype.typical] == ["early", "middle", "late"]
        middles, curves = [], []
        for k in led:
            course = model.scale_[k] * model.W_[k, r] * model.U_[model.offsets_[k] : model.offsets_[k + 1], r]
            place = np.linspace(0, 1, len(course)) if len(course) > 1 else np.zeros(1)
            middles.append(np.sum(place * course) / course.sum())
            curves.append(np.interp(np.linspace(0, 1, 21), place, course))
        first = np.array_split(np.argsort(middles, kind="stable"), 3)[0]
        exact = np.array(curves)[first].mean(axis=0)
        np.testing.assert_allclose(phenotype.typical[0].curve, exact, atol=0.25 * exact.max())


def test_helpers_of_courses_with_degenerate_histories():
    rng = np.random.default_rng(1)
    visits = np.array([1, 2, 9, 1, 3])
    patients = Patients(
        rng.random((5, 2)), rng.random((16, 2)), np.concatenate([[0], np.cumsum(visits)]), np.ones(5)
    )
    found = activity(patients, 1, np.array([0, 2, 4]))
    assert len(found.values) == 13
    assert len(smoothed(found)) == 13
    assert resampled(found, 5).shape == (3, 5)
    assert np.all((mean_time(found) >= 0) & (mean_time(found) <= 1))
    nothing = found._replace(values=np.zeros(13))
    assert np.isnan(mean_time(nothing)).all()


def test_overview_attrition_and_card_hold_no_dates_and_paths(built):
    text = json.dumps(built.as_dict())
    for secret in ("2011-02", "secret", "index_before"):
        assert secret not in text
    steps = [(s.step, s.patients, s.removed) for s in built.overview.attrition]
    assert [step for step, _, _ in steps] == ["in the source", "before (date)", "at least 5 visits"]
    assert steps[0][1:] == (900, None)
    assert steps[1][1] in (895, 900)
    assert steps[1][2] is None  # four patients
    assert steps[2][1:] == (400, steps[1][1] - 400)
    data = next(section for section in built.card if section.heading == "Data")
    assert ("Source", "omop") in data.lines
    assert dict(data.lines)["Values"] == "whether a code occurs at a visit"


def test_a_cohort_chosen_from_a_larger_one_ends_the_attrition(model, cohort):
    shown = content.build(model, cohort[:380])
    steps = shown.overview.attrition
    assert (steps[-1].step, steps[-1].patients, steps[-1].removed) == ("chosen for this report", 380, 20)
    assert dict(shown.overview.figures)["Patients"] == "about 380"
    assert dict(shown.overview.figures)["Fitted on"] == "about 400 patients"
    assert "Fitted on" not in dict(content.build(model, cohort).overview.figures)


def test_events_placed_in_encounters_are_shown_in_steps_of_five_percent(model, cohort):
    part = cohort[:100]
    counts = {"events_with_encounter": 6700, "events_covered_by_encounter": 3290, "events_near_encounter": 0}
    part.origin = {"quality": counts | {"events_by_day": 10}}
    shown = dict(content.build(model, part).overview.cohort)["Events"]
    wanted = "65% in their own encounter, 35% placed in one that covers their time, under 5% in none, as visits by day"
    assert shown == wanted
    part.origin = {"quality": {"events_with_encounter": 6700, "events_by_day": 0}}
    assert "Events" not in dict(content.build(model, part).overview.cohort)


@pytest.mark.parametrize(
    "origin",
    [{"attrition": 3}, {"attrition": [{"step": 1}]}, {"settings": 4, "source": 7}, {"quality": 3}, {}],
)
def test_an_invalid_origin_is_ignored(model, cohort, origin):
    odd = cohort[:100]
    odd.origin = origin
    assert content.build(model, odd).overview.attrition is None


def test_a_small_cohort_is_not_shown_at_all(model, cohort):
    shown = content.build(model, cohort[:10])
    assert "fewer than 15 patients after rounding" in shown.overview.notes[0]
    assert shown.overview.cohort == []
    assert all(p.prevalence is None and not p.typical and not p.profile for p in shown.phenotypes)
    assert shown.phenotypes[0].temporal
    small = TASTE(2, max_iter=3, n_init=1, init="random", random_state=0).fit(cohort[:10])
    shown = content.build(small, cohort[:10])
    assert shown.overview.figures == [("Phenotypes", "2")]
    assert shown.overview.loss == []
    assert shown.features.temporal == []
    assert not any(p.temporal or p.static for p in shown.phenotypes)


def test_a_model_without_feature_counts(model, cohort, tmp_path):
    model.save(tmp_path / "model")
    old = TASTE.load(tmp_path / "model")
    assert content.build(old).phenotypes[0].temporal
    assert "No cohort" in content.build(old).overview.notes[0]
    old.feature_patients_ = old.static_patients_ = None
    with pytest.raises(InputError, match="give the cohort"):
        content.build(old)
    assert (
        content.build(old, cohort).phenotypes[0].temporal
        == content.build(model, cohort).phenotypes[0].temporal
    )
    assert content.build(old, gate=Gate(trusted=True)).phenotypes[0].temporal


def test_new_patients_are_projected(model, cohort):
    others, _ = simulate.heart_failure(120, random_state=9)
    shown = content.build(model, others)
    assert dict(shown.overview.figures)["Patients"] == "about 120"
    assert sum(p.prevalence is not None for p in shown.phenotypes) > 1


@pytest.mark.parametrize("rank", [1, 2, 7])
@pytest.mark.parametrize("n_static", [0, 4])
def test_degenerate_cohorts_have_a_report(rank, n_static):
    small = cohorts.cohort(seed=3, n_patients=60, n_features=6, n_static=n_static, visits=(0, 5))
    fitted = TASTE(rank, n_init=1, init="random", random_state=0, max_iter=5).fit(small)
    fitted.V_[:, 0] = 0  # a phenotype that died
    shown = content.build(fitted, small)
    json.dumps(shown.as_dict(), allow_nan=False)
    assert shown.phenotypes[0].temporal == []
    assert all(p.course.months is None and p.outcome is None for p in shown.phenotypes)
    assert all(0 <= point.x <= 1 and 0 <= point.y <= 1 for point in shown.overview.map)
    assert bool(shown.features.static) == bool(n_static)


def test_times_that_are_numbers_have_no_months():
    small = cohorts.cohort(seed=3, n_patients=60, visits=(1, 5))
    timed = Cohort(
        small.visits,
        small.offsets,
        small.static,
        visit_times=np.arange(small.n_visits),
        labels=np.where(np.arange(60) < 20, np.nan, np.arange(60) % 2),
    )
    fitted = TASTE(2, n_init=1, init="random", random_state=0, max_iter=5).fit(timed)
    shown = content.build(fitted, timed)
    assert "Follow-up in time units" in dict(shown.overview.cohort)
    assert all(p.course.months is None for p in shown.phenotypes)
    assert dict(shown.overview.cohort)["Cases"] == "50.0% of patients with a label"
    numbers = Cohort(timed.visits, timed.offsets, timed.static, labels=np.arange(60.0))
    assert all(p.outcome is None for p in content.build(fitted, numbers).phenotypes)


def test_odds_are_of_rounded_counts_of_patients_with_a_label():
    small = cohorts.cohort(seed=3, n_patients=200, n_static=0, visits=(1, 5))
    labels = (np.arange(200) % 3 == 0).astype(float)
    labels[np.flatnonzero(labels == 0)[:5]] = np.nan
    fitted = TASTE(2, random_state=0, init="random", n_init=1, max_iter=5).fit(small)
    lead = patients_of(fitted).leading()
    shown = content.build(fitted, Cohort(small.visits, small.offsets, labels=labels))
    link = shown.phenotypes[0].outcome
    a, b = np.sum(labels[lead == 0] == 1), np.sum(labels[lead == 0] == 0)
    assert link.odds_ratio is not None
    assert link.leading == pytest.approx(a / (a + b), abs=5 / (a + b))
    few = labels.copy()
    few[np.flatnonzero(labels == 1)[8:]] = 0.0
    hidden = content.build(fitted, Cohort(small.visits, small.offsets, labels=few))
    assert all(p.outcome is None for p in hidden.phenotypes)
    assert "Cases" not in dict(hidden.overview.cohort)


def test_numbers_are_compared_by_their_means():
    small = cohorts.cohort(seed=3, n_patients=200, n_static=0, visits=(1, 5), density=0.9)
    rng = np.random.default_rng(0)
    seldom = np.zeros(200)
    seldom[:9] = 1 + rng.random(9)
    static = np.column_stack([rng.random(200), seldom])
    numbers = Cohort(small.visits, small.offsets, static, static_names=["marker", "zxseldom"])
    fitted = TASTE(2, n_init=1, init="random", random_state=0, max_iter=5).fit(numbers)
    shown = content.build(fitted, numbers)
    lead = patients_of(fitted).leading()
    for r, phenotype in enumerate(shown.phenotypes):
        found = {c.feature: c for c in phenotype.profile}
        assert found["marker"].kind == "mean"
        step = round_step(5 / max(np.sum(lead == r) - 4, 1))
        assert found["marker"].leading == pytest.approx(static[lead == r, 0].mean(), abs=step)
    assert "zxseldom" not in json.dumps(shown.as_dict())


def test_ages_of_ninety_and_more_are_one_band():
    small = cohorts.cohort(seed=3, n_patients=200, n_static=0, visits=(1, 5), density=0.9)
    rng = np.random.default_rng(0)
    level = rng.integers(0, 3, 200)
    static = np.column_stack([np.eye(3)[level], 50 + 70 * rng.random(200)])
    names = ["age=<90", "age=90-94", "age=95+", "age at entry"]
    aged = Cohort(small.visits, small.offsets, static, static_names=names)
    fitted = TASTE(2, n_init=1, init="random", random_state=0, max_iter=5).fit(aged)
    shown = content.build(fitted, aged)
    assert [f.name for f in shown.features.static] == ["age=<90", "age=90+", "age at entry"]
    assert shown.features.static[1].share == pytest.approx(np.mean(level > 0), abs=5 / 200)
    whole = dict(shown.phenotypes[0].static)
    merged = np.array([fitted.F_[0], fitted.F_[1] + fitted.F_[2], fitted.F_[3]])
    np.testing.assert_allclose([whole.get(j, 0) for j in range(3)], merged[:, 0] / merged.max(), atol=1e-3)
    lead = patients_of(fitted).leading()
    for r, phenotype in enumerate(shown.phenotypes):
        found = {c.feature: c for c in phenotype.profile}
        mean = np.minimum(static[lead == r, 3], 90).mean()
        assert found["age at entry"].leading == pytest.approx(
            mean, abs=round_step(5 * 40 / np.sum(lead == r))
        )
    text = json.dumps(shown.as_dict())
    assert "95" not in "".join(f.name for f in shown.features.static)
    assert "90-94" not in text


def test_a_name_with_a_date_is_not_shown(model, cohort):
    dated = TASTE(4)
    vars(dated).update(vars(model))
    dated.feature_names_in_ = model.feature_names_in_.copy().astype("U60")
    dated.feature_names_in_[0] = "Dx_seen on 1987-06-05"
    shown = content.build(dated)
    assert not re.search(r"(?<!\d)1987", json.dumps(shown.as_dict()))  # 0.001987 is no year
    assert any("date" in s.reason for s in shown.audit)


def test_the_map_keeps_distances():
    V = np.array([[1, 0.9, 0], [0, 0.1, 0], [0, 0, 1.0]])
    points = map_positions(V)
    gap = np.linalg.norm(points[:, None] - points[None], axis=2)
    assert gap[0, 1] < 0.2 * gap[0, 2]
    np.testing.assert_allclose(map_positions(V[:, :1]), 0.5)
    apart = map_positions(np.eye(12))  # nothing in common: nowhere near each other
    gap = np.linalg.norm(apart[:, None] - apart[None], axis=2) + np.eye(12)
    assert gap.min() > 0.15
    assert np.ptp(apart, axis=0).max() == pytest.approx(1.0)
    assert np.isfinite(map_positions(np.ones((3, 4)))).all()


def test_what_selection_found(model, cohort):
    rows = [
        (r, kind, "V", 0.7 + 0.02 * r + 0.01 * i)
        for r in (1, 2, 3)
        for kind in ("starts",)
        for i in range(12)
    ]
    rows += [(1, "bootstrap", "V", 0.9), (1, "starts", "F", 0.1)]
    rows += [(1, "halves", "V", cosine) for cosine in (0.9, 0.85, 0.79, 0.95)]
    table = pd.DataFrame(rows, columns=["phenotype", "kind", "factor", "similarity"])
    shown = content.build(model, cohort, selection=table)
    found = shown.phenotypes[0].stability
    values = 0.72 + 0.01 * np.arange(12)
    assert found.starts.median == three(np.median(values))
    assert found.starts.share == three(np.mean(values >= 0.8))
    assert len(found.starts.values) == 12
    assert found.bootstrap.median == 0.9
    assert (found.halves.reproduced, found.halves.comparisons, found.halves.share) == (3, 4, 0.75)
    assert shown.phenotypes[1].stability.halves is None  # as of a selection without halves
    assert shown.phenotypes[1].stability.bootstrap is None
    assert shown.phenotypes[3].stability is None
    assert [line[0] for line in shown.overview.stability.lines] == [
        "In halves of the patients",
        "In other starts",
        "In resamples of the patients",
    ]
    columns, written = table_files.tables(shown)["phenotypes"]
    first = dict(zip(columns, written[0], strict=True))
    assert (first["halves_median"], first["halves_reproducibility"]) == (0.875, 0.75)
    assert (first["starts_reproducibility"], first["bootstrap_median"]) == (found.starts.share, 0.9)
    assert dict(zip(columns, written[3], strict=True))["halves_median"] is None
    figure = model_figures.drawings(shown)["stability"](shown)
    labels = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    assert labels == {"halves of the patients (median)", "other starts (median)", "resamples (median)"}


def test_an_applied_review(model, cohort):
    review = Review.blank(model, names={2: "Second"})
    decisions = list(review.decisions)
    decisions[2] = Decision(3, status="merged", merge_with=2)
    decisions[3] = Decision(4, status="rejected")
    review = replace(review, decisions=tuple(decisions))
    shown = content.build(model.apply_review(review), cohort, review=review)
    assert [(p.number, p.name, p.merged_from) for p in shown.phenotypes] == [
        (1, None, []),
        (2, "Second", [2, 3]),
    ]
    assert shown.fingerprint == fingerprint(model)
    assert shown.review["decisions"][1]["name"] == "Second"
    first = content.build(model, cohort).phenotypes[0]
    assert shown.phenotypes[0].temporal == first.temporal
    assert len(shown.overview.map) == 2


def test_trusted_content_suppresses_nothing_and_is_marked(open_built, cohort):
    assert open_built.trusted
    assert "switched off" in open_built.overview.notes[0]
    assert len(open_built.features.temporal) == cohort.n_features
    assert all(p.leading.patients is not None and p.prevalence is not None for p in open_built.phenotypes)
    assert all(c.leading is not None for p in open_built.phenotypes for c in p.profile)
    assert any("OFF" in text for section in open_built.card for text in section.text)


def test_static_names_are_readable():
    assert static_label("Static_age_between_60_69") == "age between 60 69"
    assert static_label("sex=female") == "sex=female"
    assert static_label("Static_") == "Static "
