"""Measurements as events: how a result is rated, what is counted, and on whom quantiles are learnt."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helpers.records import event, person, records
from phenotaste import TASTE, build, prediction
from phenotaste.build.assemble import ModelColumns
from phenotaste.build.measurements import Threshold
from phenotaste.build.settings import Groups, Measurements, Settings, Weights
from phenotaste.cli.cohort_run import columns_of
from phenotaste.cohort.origin import learnt_warning
from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace

KIND = ("measurement",)


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


def result(
    patient, value, low=None, high=None, *, flag=None, unit=None, code="Glucose", time="2020-01-01", visit="v"
):
    return {
        "patient": patient,
        "time": pd.Timestamp(time),
        "visit": visit,
        "code": code,
        "vocabulary": None,
        "value": value,
        "unit": unit,
        "low": low,
        "high": high,
        "flag": flag,
    }  # fmt: skip


def built(workspace, results, measurements=None, events=(), model=None, patients=None, **more):
    patients = patients or sorted({row["patient"] for row in results})
    source = records(workspace, events, [person(name) for name in patients], measurements=results)
    chosen = Settings(**({"kinds": KIND, "measurements": measurements or Measurements()} | more))
    return build.cohort(workspace, source, chosen, model_columns=model)


def features(cohort):
    """The features of each patient with their values."""
    dense = cohort.cohort.visits.toarray()
    offsets, names = cohort.cohort.offsets, cohort.cohort.feature_names
    return {
        str(patient): dict(sorted(zip(names[row > 0].tolist(), row[row > 0].tolist(), strict=True)))
        for patient, start, stop in zip(cohort.cohort.patient_ids, offsets[:-1], offsets[1:], strict=True)
        for row in [dense[start:stop].sum(axis=0)]
    }


def test_a_result_is_rated_by_its_own_range_then_its_flag_then_the_table(workspace, tmp_path):
    ranges = tmp_path / "ranges.csv"
    ranges.write_text("code,low,high,unit\nglucose,4,6,mmol/L\n")
    rows = [
        result("a", 5.0, 5.5, 9.0, flag="H"),  # low by its range, whatever else says
        result("b", 5.0, flag="H"),  # high by its flag
        result("c", 7.0, unit="mmol/l"),  # high by the table
        result("d", 126.0, unit="mg/dL"),  # in another unit: not rated
        result("e", 5.0),  # normal by the table
        result("f", None, flag="abnormal"),
    ]
    found = built(workspace, rows, Measurements(level="all", ranges=str(ranges)))
    assert features(found) == {
        "a": {"Lab_Glucose low": 1},
        "b": {"Lab_Glucose high": 1},
        "c": {"Lab_Glucose high": 1},
        "e": {"Lab_Glucose normal": 1},
        "f": {"Lab_Glucose abnormal": 1},
    }
    quality = found.quality
    assert [quality[f"measurements_{name}"] for name in ("own_range", "own_flag", "ranges_table")] == [
        1,
        2,
        2,
    ]
    assert (quality["measurements"], quality["measurements_unit_mismatch"]) == (6, 1)
    assert quality["measurement_codes_in_several_units"] == 1


def test_normal_results_are_features_only_on_request(workspace):
    rows = [
        result("a", value, 4.0, 6.0, time=f"2020-01-0{day}") for day, value in enumerate((5.0, 7.0, 8.0), 1)
    ]
    assert features(built(workspace, rows)) == {"a": {"Lab_Glucose high": 2}}
    assert features(built(workspace, rows, Measurements(level="all"))) == {
        "a": {"Lab_Glucose high": 2, "Lab_Glucose normal": 1}
    }
    assert features(built(workspace, rows, Measurements(level="counts"))) == {
        "a": {"Lab_Glucose measured": 3}
    }


def test_limits_are_themselves_normal_also_in_single_precision(workspace):
    single = float(np.float32(0.6))  # 0.6000000238
    rows = [result("a", single, 0.1, 0.6), result("b", 0.1, 0.1, 0.6), result("c", 0.61, 0.1, 0.6)]
    assert set(features(built(workspace, rows))) == {"c"}


def test_implausible_results_are_counted_and_dropped(workspace, tmp_path):
    ranges = tmp_path / "ranges.csv"
    ranges.write_text("variable,low,high,implausible_below,implausible_above\nHR,60,100,10,300\n")
    rows = [
        result("a", 5.0, code="HR"),
        result("a", 999999.0, 4.0, 6.0),
        result("a", -1.0, 4.0, 6.0),
        result("a", -5.0, -2.0, 2.0, code="base excess"),
        result("a", 301.0, code="HR"),
    ]
    found = built(workspace, rows, Measurements(ranges=str(ranges)))
    assert features(found) == {"a": {"Lab_base excess low": 1}}
    assert found.quality["measurements_implausible"] == 4


def test_the_entries_of_a_kind_are_multiplied_by_its_weight(workspace):
    rows = [result("a", 9.0, 4.0, 6.0), result("a", 9.0, 4.0, 6.0, time="2020-01-02")]
    diagnoses = [event("a", "2020-01-01", visit="v")]
    found = built(
        workspace,
        rows,
        events=diagnoses,
        kinds=("diagnosis", "measurement"),
        weights=Weights(measurement=0.25),
    )
    assert features(found) == {"a": {"Dx_401 [X]": 1, "Lab_Glucose high": 0.5}}


def test_names_and_groups_of_the_code_are_those_of_every_level(workspace, tmp_path):
    groups = tmp_path / "groups.csv"
    groups.write_text("code,group\n50809,Glucose\n50931,Glucose\n")
    rows = [result("a", 9.0, 4.0, 6.0, code=code) for code in ("50809", "50931")]
    names = [{"vocabulary": None, "code": "50809", "name": "Glucose (gas)"}]
    source = records(workspace, [], [person("a")], measurements=rows, names=names)
    found = build.cohort(workspace, source, Settings(kinds=KIND))
    assert features(found) == {"a": {"Lab_50931 high": 1, "Lab_Glucose (gas) high [50809]": 1}}
    found = build.cohort(workspace, source, Settings(kinds=KIND, groups=Groups(table=str(groups))))
    assert features(found) == {"a": {"Lab_Glucose high": 2}}


def cohort_without_ranges(n=20):
    return [result(f"p{k:02}", float(k)) for k in range(n)]


def test_quantiles_rate_results_without_a_range(workspace):
    found = built(workspace, cohort_without_ranges())
    low, high = np.quantile(np.arange(20.0), [0.1, 0.9])
    (learnt,) = found.thresholds
    assert (learnt.low, learnt.high, learnt.values, learnt.patients) == (low, high, 20, 20)
    assert list(features(found)) == ["p00", "p01", "p18", "p19"]
    assert "thresholds.csv" in found.files()
    assert "quantile" in found.notes[-1]
    with pytest.raises(InputError, match="ranges"):
        built(workspace, cohort_without_ranges(), Measurements(quantiles=None))


def test_quantiles_of_ten_patients_are_not_learnt(workspace):
    rows = [*cohort_without_ranges(10), result("a", 5.0, 1.0, 2.0, code="K")]
    assert built(workspace, rows).thresholds == ()


def test_quantiles_are_learnt_on_the_listed_patients_only(workspace, tmp_path):
    listed = tmp_path / "train.csv"
    listed.write_text("patient\n" + "".join(f"p{k:02}\n" for k in range(15)))
    found = built(workspace, cohort_without_ranges(), Measurements(learn_from=str(listed)))
    assert found.thresholds[0][3:] == (*np.quantile(np.arange(15.0), [0.1, 0.9]), 15, 15)


def test_new_patients_are_rated_by_the_thresholds_of_the_model(workspace):
    model = ModelColumns(
        ("Lab_Glucose high", "Lab_Glucose low"), None, (Threshold("", "Glucose", None, 3, 30, 9, 9),)
    )
    found = built(workspace, cohort_without_ranges(), model=model)
    assert list(features(found)) == ["p00", "p01", "p02"]
    none = ModelColumns(("Lab_Glucose high",), None)
    with pytest.raises(InputError, match="ranges"):
        built(workspace, cohort_without_ranges(), model=none)


def test_a_model_keeps_the_thresholds_of_its_cohort_and_a_prediction_warns_of_them(workspace, tmp_path):
    rows = cohort_without_ranges(90)
    found = built(workspace, rows, Measurements(level="all"))
    TASTE(rank=1, n_init=1, init="random", random_state=0, max_iter=3).fit(found.cohort).save(
        tmp_path / "model"
    )
    found.save(tmp_path / "cohort")
    columns, _ = columns_of(tmp_path / "model")
    assert columns.thresholds == found.thresholds
    assert columns_of(tmp_path / "cohort")[0] == columns  # of the cohort itself, too
    new = built(workspace, [result("new", 1.0)], Measurements(level="all"), model=columns)
    assert features(new) == {"new": {"Lab_Glucose low": 1}}
    assert new.thresholds == found.thresholds
    assert learnt_warning(new.cohort.origin) is None
    labelled = found.cohort.with_labels(np.arange(90) % 2)
    with pytest.warns(UserWarning, match="limits of 1 measurements were learnt"):
        prediction.evaluate(labelled, ranks=1, splits=1, baselines=[], resamples=0, max_iter=2)


@hypothesis_settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.floats(-50, 50).map(lambda value: round(value, 1)), min_size=24, max_size=24),
    others=st.lists(st.floats(-50, 50), min_size=8, max_size=8),
    quantiles=st.sampled_from([(0.1, 0.9), (0.25, 0.5)]),
)
def test_results_of_other_patients_do_not_change_the_quantiles(
    workspace, tmp_path, values, others, quantiles
):
    """Sixteen training patients and eight others, whose results are then replaced."""
    listed = tmp_path / "train.csv"
    listed.write_text("patient\n" + "".join(f"p{k:02}\n" for k in range(16)))
    chosen = Measurements(level="all", quantiles=quantiles, learn_from=str(listed))
    rows = [result(f"p{k:02}", value) for k, value in enumerate(values)]
    before = built(workspace, rows, chosen)
    low, high = np.quantile(values[:16], quantiles)
    assert before.thresholds[0][3:5] == pytest.approx((low, high))
    replaced = [*rows[:16], *(result(f"p{k:02}", value) for k, value in enumerate(others, 16))]
    after = built(workspace, replaced, chosen)
    assert after.thresholds == before.thresholds
    first = {patient: found for patient, found in features(before).items() if patient < "p16"}
    assert first == {patient: found for patient, found in features(after).items() if patient < "p16"}
    assert all(
        list(found) == [f"Lab_Glucose {level_of(values[int(patient[1:])], *before.thresholds[0][3:5])}"]
        for patient, found in features(before).items()
    )


def level_of(value, low, high):
    value, low, high = np.float32(value), np.float32(low), np.float32(high)
    return "low" if value < low else "high" if value > high else "normal"
