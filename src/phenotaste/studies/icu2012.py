"""The ICU stays of the PhysioNet/CinC Challenge 2012 as cohorts: hourly flags, static facts, deaths in hospital.

I. Silva, G. Moody, D. Scott, L. Celi, R. Mark, "Predicting in-hospital mortality of ICU patients", Computing in
Cardiology 2012 (ODC-By 1.0). The data are not part of this package: a folder of the user's own download is read.
"""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy import sparse

from phenotaste.cohort import Cohort
from phenotaste.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

SetName = Literal["a", "b"]
SETS: tuple[SetName, ...] = ("a", "b")
ADDRESS = "https://physionet.org/files/challenge-2012/1.0.0"
DESCRIPTORS = ("Age", "Gender", "Height", "ICUType", "Weight")  # of the admission, at 00:00
DEATH, STAY = "In-hospital_death", "RecordID"
HOURS = 100  # more than a stay has
AGES, BMIS = (0, 45, 55, 65, 75, 85), (0, 20, 25, 30, 35)
ICU_TYPES = {1: "coronary", 2: "cardiac surgery", 3: "medical", 4: "surgical"}
HEIGHTS, WEIGHTS = (120, 230), (25, 300)  # cm and kg that are plausible
NOT_FEATURES = ("Weight", "Height")
VENTILATION = "MechVent on"

# Customary adult limits, as printed on laboratory reports and taught for vital signs: low below the first, high above
# the second; implausible below the third and above the fourth. FiO2 and the Glasgow Coma Scale have no normal range,
# and are divided into three levels. Units are those of the Challenge: mg/dL, mmol/L, mEq/L, mmHg, °C, mL.
RANGES: dict[str, tuple[float | None, float | None, float | None, float | None]] = {
    "ALP": (40, 130, None, None),
    "ALT": (5, 50, None, None),
    "AST": (5, 50, None, None),
    "Albumin": (3.0, 5.0, None, None),
    "BUN": (7, 25, None, None),
    "Bilirubin": (0.1, 1.2, None, None),
    "Cholesterol": (120, 200, None, None),
    "Creatinine": (0.6, 1.3, None, None),
    "DiasABP": (50, 90, 5, 200),
    "FiO2": (0.39, 0.6, 0.2, 1.0),
    "GCS": (9, 14, None, None),
    "Glucose": (70, 150, None, None),
    "HCO3": (22, 28, None, None),
    "HCT": (30, 45, None, None),
    "HR": (60, 100, 10, 300),
    "K": (3.5, 5.0, 1, 12),
    "Lactate": (0.5, 2.0, None, None),
    "MAP": (65, 105, 10, 250),
    "Mg": (1.6, 2.4, None, None),
    "NIDiasABP": (50, 90, 5, 200),
    "NIMAP": (65, 105, 10, 250),
    "NISysABP": (90, 140, 20, 300),
    "Na": (135, 145, 90, 190),
    "PaCO2": (35, 45, 5, 200),
    "PaO2": (80, 150, 15, 700),
    "Platelets": (150, 400, None, None),
    "RespRate": (12, 20, 1, 80),
    "SaO2": (92, 100, None, None),
    "SysABP": (90, 140, 20, 300),
    "Temp": (36, 38, 28, 43),
    "TroponinI": (None, 1.0, None, None),
    "TroponinT": (None, 0.1, None, None),
    "Urine": (30, 200, None, None),
    "WBC": (4, 11, None, None),
    "pH": (7.35, 7.45, 6.5, 8.0),
}
LIMITS = ("low", "high", "implausible_below", "implausible_above")
NEVER = ("SaO2 high", "Bilirubin low")  # impossible values
# Observed at the bedside, in contrast to laboratory values, those of blood gases included.
VITAL_SIGNS = ("DiasABP", "FiO2", "GCS", "HR", "MAP", "MechVent", "NIDiasABP", "NIMAP", "NISysABP", "RespRate",
               "SysABP", "Temp", "Urine")  # fmt: skip


class Stays(NamedTuple):
    """A set as it is read, in either layout."""

    events: "pd.DataFrame"  # stay, minute, variable, value
    facts: "pd.DataFrame"  # stay, the descriptors and death, in the order of the stays


def icu2012(
    folder: str | Path,
    set_name: SetName,
    flags: Literal["abnormal", "all"] = "abnormal",
    *,
    normal_hours: Literal["keep", "drop"] = "keep",
    cache: str | Path | None = None,
) -> Cohort:
    """Read a set of stays: 102 features with all flags and 67 with abnormal ones, 18 static columns.

    A visit is an hour with any plausible measurement. Without normal flags some hours have no entry; they stay as
    empty visits ("nothing was abnormal") unless `normal_hours="drop"`. Stays without measurement have no visits.
    """
    kept = None if cache is None else Path(cache) / f"icu2012-{set_name}-{flags}-{normal_hours}"
    if kept is not None and kept.exists():
        return Cohort.load(kept)
    limits = ranges(Path(folder))
    stays = read_stays(Path(folder), set_name)
    measured = flagged(stays.events, limits)
    names = feature_names(limits, flags)
    if normal_hours == "drop":
        measured = measured[measured["feature"].isin(names)]
    visits, owners, hours = hourly(measured, stays.facts["stay"], names)
    cohort = Cohort(
        visits,
        np.searchsorted(owners, np.arange(len(stays.facts) + 1)),
        static_facts(stays.facts),
        patient_ids=stays.facts["stay"].to_numpy(),
        visit_times=hours,
        feature_names=names,
        labels=stays.facts[DEATH].to_numpy(),
    )
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        cohort.save(kept)
    return cohort


def modes(names: list[str]) -> tuple[list[str], list[str]]:
    """Divide features into vital signs, with what else is recorded at the bedside, and laboratory values."""
    vital = [name for name in names if name.split()[0] in VITAL_SIGNS]
    return vital, [name for name in names if name not in set(vital)]


# The two layouts ---------------------------------------------------------------------------------------------------


def read_stays(folder: Path, set_name: SetName) -> Stays:
    """Read a set from the files of the Challenge, or from tables prepared from them."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the folder of the Challenge's files.")
    if (folder / f"set_{set_name}_events.parquet").exists():
        return read_prepared(folder, set_name)
    return read_original(folder, set_name)


def read_prepared(folder: Path, set_name: SetName) -> Stays:
    import pandas as pd

    events = pd.read_parquet(folder / f"set_{set_name}_events.parquet")
    events["variable"] = events["variable"].astype(str)
    facts = pd.read_csv(existing(folder / f"set_{set_name}_stays.csv")).sort_values("stay", ignore_index=True)
    return Stays(events, facts)


def read_original(folder: Path, set_name: SetName) -> Stays:
    """Read `set-a`, a folder or an archive of a text file for each stay, and `Outcomes-a.txt`."""
    import pandas as pd

    bodies, counts = [], []
    for text in stay_files(folder, set_name):
        body = text.partition("\n")[2].rstrip("\n")
        bodies.append(body)
        counts.append(body.count("\n") + 1 if body else 0)
    columns: Any = {"time": "category", "variable": str}
    table = pd.read_csv(
        io.StringIO("\n".join(body for body in bodies if body)),
        names=["time", "variable", "value"],
        dtype=columns,
        keep_default_na=False,
    )
    table["file"] = np.repeat(np.arange(len(counts)), counts)
    table["value"] = pd.to_numeric(table["value"], errors="coerce").astype(np.float64)
    table["minute"] = minutes(table["time"])
    stays = stay_numbers(table, len(counts), set_name)
    table["stay"] = stays[table["file"]]
    first = table[(table["minute"] == 0) & table["variable"].isin(DESCRIPTORS)]
    first = first.drop_duplicates(["stay", "variable"])  # a weight may also be measured in the first minute
    facts = first.pivot(index="stay", columns="variable", values="value").reindex(
        index=np.sort(stays), columns=list(DESCRIPTORS)
    )
    events = table.drop(first.index)
    events = events[~events["variable"].isin([STAY, ""])].reset_index(drop=True)
    facts = facts.rename_axis("stay").rename_axis(None, axis=1).reset_index()
    events["value"] = events["value"].astype(np.float32)  # as in prepared tables
    return Stays(events[["stay", "minute", "variable", "value"]], with_deaths(facts, folder, set_name))


def stay_files(folder: Path, set_name: SetName) -> Iterator[str]:
    """The texts of a set's files, from a folder, or from an archive of it, in the order of their names."""
    name = f"set-{set_name}"
    if (folder / name).is_dir():
        for path in sorted((folder / name).glob("*.txt")):
            yield path.read_text()
    elif (folder / f"{name}.tar.gz").exists():
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            members = [member for member in archive if member.isfile() and member.name.endswith(".txt")]
            for member in members:
                file = archive.extractfile(member)
                assert file is not None
                yield file.read().decode()
    elif (folder / f"{name}.zip").exists():
        with zipfile.ZipFile(folder / f"{name}.zip") as archive:
            for entry in sorted(entry for entry in archive.namelist() if entry.endswith(".txt")):
                yield archive.read(entry).decode()
    else:
        raise InputError(
            f"{folder} has no {name}, as a folder, .tar.gz or .zip: download it from {ADDRESS}, or give the folder "
            "that it is in."
        )


def minutes(times: "pd.Series") -> np.ndarray:
    """Minutes since admission of times such as 07:30."""
    categories = times.cat.categories
    try:
        known = np.array([60 * int(text[:-3]) + int(text[-2:]) for text in categories], np.int64)
    except ValueError:
        raise InputError(
            "A file of the stays has times that are not hours and minutes: download it again."
        ) from None
    return known[times.cat.codes.to_numpy()]


def stay_numbers(table: "pd.DataFrame", n_files: int, set_name: str) -> np.ndarray:
    """The number of the stay of each file."""
    rows = table[table["variable"] == STAY].drop_duplicates("file").set_index("file")["value"]
    found = rows.reindex(np.arange(n_files))
    if not n_files or found.isna().any() or found.duplicated().any():
        raise InputError(
            f"The files of set-{set_name} are not those of the Challenge: some have no {STAY}, or share one; "
            "download them again."
        )
    return found.to_numpy().astype(np.int64)


def with_deaths(facts: "pd.DataFrame", folder: Path, set_name: str) -> "pd.DataFrame":
    import pandas as pd

    path = existing(folder / f"Outcomes-{set_name}.txt")
    outcomes = pd.read_csv(path, skipinitialspace=True)
    if not {STAY, DEATH} <= set(outcomes.columns):
        raise InputError(f"{path.name} has no columns {STAY} and {DEATH}: download it again.")
    deaths = outcomes.drop_duplicates(STAY).set_index(STAY)[DEATH]
    found = deaths.reindex(facts["stay"])
    if found.isna().any():
        raise InputError(f"{path.name} lacks stays of set-{set_name}: download both again.")
    return facts.assign(**{DEATH: found.to_numpy()})


def existing(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"{path.parent} has no {path.name}: download it from {ADDRESS}.")
    return path


# From measurements to flags ----------------------------------------------------------------------------------------


def ranges(folder: Path) -> "pd.DataFrame":
    """The limits of each variable: those of `ranges.csv` in the folder, or else the ones above."""
    import pandas as pd

    path = folder / "ranges.csv"
    if not path.exists():
        return pd.DataFrame.from_dict(RANGES, orient="index", columns=list(LIMITS), dtype=np.float64)
    table = pd.read_csv(path)
    if not {"variable", *LIMITS} <= set(table.columns):
        raise InputError(f"{path.name} has not the columns variable, {', '.join(LIMITS)}: correct it.")
    return (
        table.set_index("variable")[list(LIMITS)].astype(np.float64).drop(list(NOT_FEATURES), errors="ignore")
    )


def flagged(events: "pd.DataFrame", limits: "pd.DataFrame") -> "pd.DataFrame":
    """stay, hour and feature of every plausible measurement; urine is summed over the hour first."""
    import pandas as pd

    known = (events["value"] >= 0) & ~events["variable"].isin(NOT_FEATURES)
    events = events[known].assign(hour=lambda table: table["minute"] // 60)
    urine = events["variable"] == "Urine"
    summed = events[urine].groupby(["stay", "hour", "variable"])["value"].sum().reset_index()
    events = pd.concat([events[~urine], summed], ignore_index=True)
    # Values are float32: a limit such as 0.6 must be rounded as they are to be equal to them.
    limit = limits.astype(np.float32).reindex(events["variable"]).reset_index(drop=True)
    value = events["value"].astype(np.float32)
    plausible = ~((value < limit["implausible_below"]) | (value > limit["implausible_above"]))
    level = np.select([value < limit["low"], value > limit["high"]], ["low", "high"], "normal")
    level = np.where(events["variable"] == "MechVent", "on", level)
    events["feature"] = events["variable"].to_numpy() + " " + level.astype(object)
    return events.loc[plausible, ["stay", "hour", "feature"]].drop_duplicates(ignore_index=True)


def feature_names(limits: "pd.DataFrame", flags: str) -> list[str]:
    levels = ("low", "normal", "high") if flags == "all" else ("low", "high")
    names = [
        f"{variable} {level}"
        for variable, row in limits.iterrows()
        for level in levels
        if level == "normal" or row[level] == row[level]  # no troponin is too low
    ]
    return sorted({*names, VENTILATION} - set(NEVER))


def hourly(
    measured: "pd.DataFrame", stays: "pd.Series", names: list[str]
) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """The hours of all stays as rows of zeros and ones, the stay of each by its position, and its hour."""
    import pandas as pd

    owner = np.searchsorted(stays.to_numpy(), measured["stay"].to_numpy()).astype(np.int64)
    key = owner * HOURS + measured["hour"].to_numpy()
    hours, row = np.unique(key, return_inverse=True)
    column = pd.Index(names).get_indexer(pd.Index(measured["feature"]))
    there = column >= 0
    entries = (np.ones(there.sum()), (row[there], column[there]))
    return sparse.csr_array(entries, (len(hours), len(names))), hours // HOURS, hours % HOURS


def static_facts(stays: "pd.DataFrame") -> "pd.DataFrame":
    """18 columns of zeros and ones: age, sex, type of unit, body-mass index or that it is unknown."""
    import pandas as pd

    height, weight = stays["Height"].where(stays["Height"].between(*HEIGHTS)), stays["Weight"]
    bmi = weight.where(weight.between(*WEIGHTS)) / (height / 100) ** 2
    facts = {f"age from {low}": in_band(stays["Age"], AGES, i) for i, low in enumerate(AGES)}
    facts |= {"female": stays["Gender"] == 0, "male": stays["Gender"] == 1}
    facts |= {name: stays["ICUType"] == code for code, name in ICU_TYPES.items()}
    facts |= {f"BMI from {low}": in_band(bmi, BMIS, i) for i, low in enumerate(BMIS)}
    return pd.DataFrame(facts | {"BMI unknown": bmi.isna()}).astype(np.float64)


def in_band(values: "pd.Series", bands: tuple[int, ...], band: int) -> "pd.Series":
    above = bands[band + 1] if band + 1 < len(bands) else np.inf
    return (values >= bands[band]) & (values < above)
