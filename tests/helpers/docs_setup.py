"""The files that pages of the documentation expect in their folder."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from helpers import simulated_cdm
from helpers.docs_run import ROOT, blocks_of, run_in_process, run_python
from helpers.fhir_files import write_fhir
from helpers.hospital_files import write_eicu, write_mimic4
from helpers.hospitals import NAMES, hospitals
from helpers.labelled import presence_effect
from helpers.source_files import source_tables, write_meds, write_synpuf, write_synthea
from phenotaste import TASTE, Cohort, simulate
from phenotaste.review import Review

HEART_FAILURE, DIABETES = (7001, 7003), 7002


def small_cohort(folder: Path) -> None:
    cohort, _ = simulate.ehr(40, n_features=30, n_static=4, mean_visits=8, rank=3)
    cohort.save(folder / "COHORT")


def cohort_of_large(folder: Path) -> None:
    cohort, _ = simulate.ehr(20, n_features=60, n_static=4, mean_visits=5, rank=3)
    cohort.save(folder / "cohort")


def omop_database(folder: Path) -> None:
    simulated_cdm.write_duckdb(simulated_cdm.cdm(n_persons=120), folder / "cdm.duckdb")


def sources(folder: Path) -> None:
    """One simulated source of every kind."""
    write_synpuf(folder / "claims")
    write_meds(folder / "meds")
    write_synthea(folder / "csv")
    write_mimic4(folder / "mimic4")
    write_eicu(folder / "eicu")
    write_fhir(folder / "bulk")
    simulated_cdm.write_duckdb(with_controls(simulated_cdm.cdm(n_persons=120)), folder / "cdm.duckdb")
    events, static = source_tables()
    events.assign(vocabulary="ICD9CM", kind="diagnosis").to_parquet(folder / "E.parquet", index=False)
    static.to_csv(folder / "S.csv", index=False)


def native_records(folder: Path) -> None:
    """Hospitals in the formats of the page, and an old export of Synthea with other columns."""
    write_mimic4(folder / "mimic4")
    write_eicu(folder / "eicu")
    write_fhir(folder / "bulk")
    clinical, vocabulary = simulated_cdm.without_vocabulary(simulated_cdm.cdm(n_persons=60, n_events=800))
    simulated_cdm.write_parquet(clinical, folder / "cdm")
    simulated_cdm.write_csv(vocabulary, folder / "athena")
    write_synthea(folder / "old")
    for file in (folder / "old").iterdir():
        header, rest = file.read_text(encoding="utf-8").split("\n", 1)
        header = header.replace("PATIENT", "PERSON")
        if file.name == "encounters.csv":
            header = header.replace("START", "BEGIN")
        file.write_text(f"{header}\n{rest}", encoding="utf-8")


def with_controls(cdm: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Replace heart failure in three of four persons: codes are random, and otherwise all persons would be cases."""
    conditions = cdm["condition_occurrence"]
    person, code = (conditions[name].to_numpy() for name in ("person_id", "condition_source_concept_id"))
    code = np.where((person % 4 > 0) & np.isin(code, HEART_FAILURE), DIABETES, code)
    column = conditions.schema.get_field_index("condition_source_concept_id")
    changed = conditions.set_column(column, "condition_source_concept_id", pa.array(code))
    return cdm | {"condition_occurrence": changed}


def model_with_integer_ids(folder: Path) -> None:
    """Patients with integer ids, as OMOP and MEDS require, a model of them, and a review."""
    simulated, _ = simulate.heart_failure(40, random_state=0)
    cohort = Cohort(
        simulated.visits,
        simulated.offsets,
        simulated.static,
        patient_ids=np.arange(40) + 100,
        visit_times=simulated.visit_times,
        feature_names=simulated.feature_names,
        static_names=simulated.static_names,
    )
    cohort.save(folder / "COHORT")
    model = TASTE(3, n_init=1, random_state=0, max_iter=5).fit(cohort)
    model.save(folder / "MODEL")
    Review.blank(model, names={1: "Heart failure"}).write(folder / "review.json")


def three_hospitals(folder: Path) -> None:
    """The cohorts of three hospitals, and the lists of codes and static features they agreed on."""
    cohorts = dict(zip(NAMES, hospitals(), strict=True))
    for name, cohort in cohorts.items():
        cohort.save(folder / name)
    lists = {"codes.txt": "feature_names", "facts.txt": "static_names"}
    for file, names in lists.items():
        known = sorted({str(name) for cohort in cohorts.values() for name in getattr(cohort, names)})
        (folder / file).write_text("\n".join(known), encoding="utf-8")


def labelled_cohort(folder: Path) -> None:
    """A cohort whose labels depend on a code and a static feature."""
    presence_effect(n_patients=200, n_features=12).save(folder / "COHORT")


def reviews(folder: Path) -> None:
    """A model with five phenotypes, three reviews of it, and another model."""
    cohort, _ = simulate.heart_failure(150, random_state=0)
    cohort.save(folder / "COHORT")
    model = TASTE(5, n_init=1, random_state=0, max_iter=10).fit(cohort)
    model.save(folder / "MODEL")
    TASTE(5, n_init=1, random_state=0, max_iter=12).fit(cohort).save(folder / "NEXT")
    first, second, *others = Review.blank(model, "Dr A", names={1: "Heart failure"}).decisions
    first, merged = replace(first, status="accepted"), replace(second, status="merged", merge_with=1)
    Review.blank(model).write(folder / "ben.json")
    for name in ("review", "anna"):
        decisions = (first, merged, *others)
        replace(Review.blank(model, "Dr A"), decisions=decisions).write(folder / f"{name}.json")


def result_of_omop_tutorial(folder: Path) -> None:
    """The database, cohort, model and review of the preceding tutorial."""
    page = ROOT / "docs" / "tutorials" / "omop.md"
    simulates_cdm = next(block for block in blocks_of(page) if block.language == "python")
    run_python(simulates_cdm, {})
    for command in (
        "phenotaste cohort omop cdm.duckdb --min-visits 5 --min-patients 5 --out cohort",
        "phenotaste fit cohort --rank 5 --max-iter 20 --n-init 2 --out choice/best",
    ):
        run_in_process(command.split())
    Review.blank(TASTE.load(folder / "choice" / "best"), names={1: "First"}).write(folder / "review.json")


SETUP = {
    "docs/cluster.md": small_cohort,
    "docs/cohorts.md": sources,
    "docs/comparison.md": labelled_cohort,
    "docs/ecosystem.md": model_with_integer_ids,
    "docs/federated.md": three_hospitals,
    "docs/howto/native-records.md": native_records,
    "docs/index.md": omop_database,
    "docs/large.md": cohort_of_large,
    "docs/prediction.md": labelled_cohort,
    "docs/review.md": reviews,
    "docs/selection.md": small_cohort,
    "docs/tutorials/nightly.md": result_of_omop_tutorial,
}
