"""Simulated stays in both layouts of the Challenge 2012: its own text files, and tables prepared from them."""

import tarfile
import zipfile

import numpy as np
import pandas as pd

DESCRIPTORS = ("Age", "Gender", "Height", "ICUType", "Weight")
# Two kinds of illness: the level of each variable in patients with and without it.
SHOCK = {"HR": (125, 80), "MAP": (55, 80), "Lactate": (5, 1), "RespRate": (28, 16), "GCS": (7, 13)}
KIDNEY = {"Creatinine": (4, 0.9), "BUN": (60, 15), "Urine": (5, 60), "K": (6, 4)}
FIRST_STAY = {"a": 500_001, "b": 600_001}


def stays(name, n=60, seed=0):
    """Events and facts of a set; patients in shock die more often, and the last stay has no events."""
    rng = np.random.default_rng([seed, ord(name)])
    shock, kidney = rng.random(n) < 0.4, rng.random(n) < 0.4
    facts = pd.DataFrame(
        {
            "stay": np.arange(n) + FIRST_STAY[name],
            "Age": rng.integers(20, 90, n).astype(float),
            "Gender": rng.integers(0, 2, n).astype(float),
            "Height": np.where(rng.random(n) < 0.3, -1.0, rng.normal(170, 8, n).round(1)),
            "ICUType": rng.integers(1, 5, n).astype(float),
            "Weight": np.where(rng.random(n) < 0.2, -1.0, rng.normal(80, 15, n).round(1)),
            "In-hospital_death": (rng.random(n) < np.where(shock, 0.6, 0.15)).astype(int),
        }
    )
    rows = []
    for k, stay in enumerate(facts["stay"][:-1]):
        for hour in range(rng.integers(3, 9)):
            for ill, levels in ((shock[k], SHOCK), (kidney[k], KIDNEY)):
                for variable, (high, usual) in levels.items():
                    if rng.random() < 0.7:
                        value = (high if ill else usual) * rng.lognormal(0.0, 0.15)
                        minute = 60 * hour + int(rng.integers(60))
                        rows.append(
                            (stay, minute, variable, -1.0 if rng.random() < 0.02 else round(value, 2))
                        )
        rows.append((stay, 75, "Weight", 81.0))
        if shock[k]:
            rows.append((stay, 130, "MechVent", 1.0))
    events = pd.DataFrame(rows, columns=["stay", "minute", "variable", "value"])
    return events.sort_values(["stay", "minute"], kind="stable", ignore_index=True), facts


def text_of(stay, facts, events):
    """The file of a stay: descriptors at 00:00, then its events."""
    lines = ["Time,Parameter,Value", f"00:00,RecordID,{stay}"]
    lines += [f"00:00,{name},{facts[name]:g}" for name in DESCRIPTORS]
    lines += [f"{t // 60:02d}:{t % 60:02d},{v},{x:g}" for t, v, x in events]
    return "\n".join(lines) + "\n"


def texts(name, **arguments):
    events, facts = stays(name, **arguments)
    by_stay = {stay: part[["minute", "variable", "value"]] for stay, part in events.groupby("stay")}
    return {
        int(row["stay"]): text_of(
            int(row["stay"]),
            row,
            by_stay[row["stay"]].itertuples(index=False) if row["stay"] in by_stay else (),
        )
        for _, row in facts.iterrows()
    }


def write_original(folder, pack="folder", **arguments):
    """set-a and set-b as folders or archives, and their outcomes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in "ab":
        place = folder / f"set-{name}"
        place.mkdir()
        for stay, text in texts(name, **arguments).items():
            (place / f"{stay}.txt").write_text(text)
        facts = stays(name, **arguments)[1]
        table = facts.rename(columns={"stay": "RecordID"})[["RecordID", "In-hospital_death"]]
        table.assign(Survival=-1).to_csv(folder / f"Outcomes-{name}.txt", index=False)
        if pack == "folder":
            continue
        if pack == "tar.gz":
            with tarfile.open(folder / f"set-{name}.tar.gz", "w:gz") as archive:
                archive.add(place, arcname=f"set-{name}")
        else:
            with zipfile.ZipFile(folder / f"set-{name}.zip", "w") as archive:
                for path in place.iterdir():
                    archive.write(path, f"set-{name}/{path.name}")
        for path in place.iterdir():
            path.unlink()
        place.rmdir()
    return folder


def write_prepared(folder, **arguments):
    folder.mkdir(parents=True, exist_ok=True)
    for name in "ab":
        events, facts = stays(name, **arguments)
        events.astype({"value": np.float32}).to_parquet(folder / f"set_{name}_events.parquet")
        facts.to_csv(folder / f"set_{name}_stays.csv", index=False)
    return folder
