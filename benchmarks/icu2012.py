"""The ICU stays of the PhysioNet/CinC Challenge 2012 as cohorts: hourly flags, static facts, deaths in hospital.

The data are I. Silva, G. Moody, D. Scott, L. Celi, R. Mark, "Predicting in-hospital mortality of ICU patients",
Computing in Cardiology 2012 (ODC-By 1.0). They are no part of this project: cohorts are kept in a folder outside it.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from scipy import sparse

from phenotaste.cohort import Cohort

from .data import ROOT

FOLDER = ROOT.parent / "shared" / "data" / "icu2012"
SETS = ("a", "b")
NEVER = (
    "SaO2 high",
    "Bilirubin low",
)  # impossible, and absent from set a, whose columns are those of both sets
AGES, BMIS = (0, 45, 55, 65, 75, 85), (0, 20, 25, 30, 35)
ICU_TYPES = {1: "coronary", 2: "cardiac surgery", 3: "medical", 4: "surgical"}
NOT_FEATURES = ("Weight", "Height")


def icu2012(
    folder: str | Path,
    set_name: Literal["a", "b"],
    flags: Literal["abnormal", "all"] = "abnormal",
    *,
    normal_hours: Literal["keep", "drop"] = "keep",
    cache: str | Path | None = None,
) -> Cohort:
    """One set of stays, 102 features with all flags and 67 with abnormal ones, 18 static columns.

    A visit is an hour with any plausible measurement. Without normal flags some hours have no entry; they stay as
    empty visits ("nothing was abnormal") unless `normal_hours="drop"`. Stays without measurement have no visits.
    """
    kept = None if cache is None else Path(cache) / f"icu2012-{set_name}-{flags}-{normal_hours}"
    if kept is not None and kept.exists():
        return Cohort.load(kept)
    stays = pd.read_csv(Path(folder) / f"set_{set_name}_stays.csv").sort_values("stay", ignore_index=True)
    measured = flagged(Path(folder), set_name)
    names = feature_names(Path(folder), flags)
    if normal_hours == "drop":
        measured = measured[measured["feature"].isin(names)]
    visits, owners, hours = hourly(measured, stays["stay"], names)
    cohort = Cohort(
        visits,
        np.searchsorted(owners, np.arange(len(stays) + 1)),
        static_facts(stays),
        patient_ids=stays["stay"].to_numpy(),
        visit_times=hours,
        feature_names=names,
        labels=stays["In-hospital_death"].to_numpy(),
    )
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        cohort.save(kept)
    return cohort


def flagged(folder: Path, set_name: str) -> pd.DataFrame:
    """stay, hour and feature of every plausible measurement; urine is summed over the hour first."""
    events = pd.read_parquet(folder / f"set_{set_name}_events.parquet")
    events["variable"] = events["variable"].astype(str)
    events["hour"] = events["minute"] // 60
    events = events[(events["value"] >= 0) & ~events["variable"].isin(NOT_FEATURES)]
    urine = events["variable"] == "Urine"
    summed = events[urine].groupby(["stay", "hour", "variable"], as_index=False)["value"].sum()
    events = pd.concat([events[~urine], summed], ignore_index=True)
    # Values are float32: a limit such as 0.6 must be rounded as they are to be equal to them.
    limits = ranges(folder).astype(np.float32).reindex(events["variable"]).reset_index(drop=True)
    value = events["value"].astype(np.float32)
    plausible = ~((value < limits["implausible_below"]) | (value > limits["implausible_above"]))
    level = np.select([value < limits["low"], value > limits["high"]], ["low", "high"], "normal")
    level = np.where(events["variable"] == "MechVent", "on", level)
    events["feature"] = events["variable"].to_numpy() + " " + level.astype(object)
    return events.loc[plausible, ["stay", "hour", "feature"]].drop_duplicates(ignore_index=True)


def ranges(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "ranges.csv", index_col="variable").drop(list(NOT_FEATURES))


def feature_names(folder: Path, flags: str) -> list[str]:
    levels = ("low", "normal", "high") if flags == "all" else ("low", "high")
    names = [
        f"{variable} {level}"
        for variable, limits in ranges(folder).iterrows()
        for level in levels
        if level == "normal" or pd.notna(limits[level])  # no troponin is too low
    ]
    return sorted({*names, "MechVent on"} - set(NEVER))


def hourly(
    measured: pd.DataFrame, stays: pd.Series, names: list[str]
) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """The hours of all stays as rows of zeros and ones, the stay of each by its position, and its hour."""
    owner = np.searchsorted(stays.to_numpy(), measured["stay"].to_numpy()).astype(np.int64)
    key = owner * 100 + measured["hour"].to_numpy()
    hours, row = np.unique(key, return_inverse=True)
    column = pd.Index(names).get_indexer(measured["feature"])
    there = column >= 0
    entries = (np.ones(there.sum()), (row[there], column[there]))
    return sparse.csr_array(entries, (len(hours), len(names))), hours // 100, hours % 100


def static_facts(stays: pd.DataFrame) -> pd.DataFrame:
    """18 columns of zeros and ones: age, sex, type of unit, body-mass index or that it is unknown."""
    height, weight = stays["Height"].where(stays["Height"].between(120, 230)), stays["Weight"]
    bmi = weight.where(weight.between(25, 300)) / (height / 100) ** 2
    facts = {f"age from {low}": in_band(stays["Age"], AGES, i) for i, low in enumerate(AGES)}
    facts |= {"female": stays["Gender"] == 0, "male": stays["Gender"] == 1}
    facts |= {name: stays["ICUType"] == code for code, name in ICU_TYPES.items()}
    facts |= {f"BMI from {low}": in_band(bmi, BMIS, i) for i, low in enumerate(BMIS)}
    return pd.DataFrame(facts | {"BMI unknown": bmi.isna()}).astype(np.float64)


def in_band(values: pd.Series, bands: tuple[int, ...], band: int) -> pd.Series:
    above = bands[band + 1] if band + 1 < len(bands) else np.inf
    return (values >= bands[band]) & (values < above)
