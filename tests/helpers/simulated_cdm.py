"""A simulated OMOP CDM 5.4 with a small vocabulary, and its file formats."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

ROOT = 441840  # Clinical finding
# child: parents. Levels below the root: 1 heart, lung, sugar; 2 failing heart, breathless; 3 the rest.
CONDITION_TREE = {
    101: (ROOT,),  # disorder of heart
    102: (ROOT,),  # disorder of lung
    103: (ROOT,),  # disorder of sugar
    201: (101,),  # failing heart
    202: (102,),  # breathlessness
    301: (201,),  # left heart failure
    302: (201, 202),  # cardiac asthma: two parents
    303: (103,),  # diabetes, directly below level 1
}
OUTSIDE = 901  # a condition that lies outside the tree
CONDITIONS = (201, 202, 301, 302, 303, 103, OUTSIDE, 0)
INGREDIENTS = {1101: "lisinopril", 1102: "hydrochlorothiazide", 1103: "metformin"}
DRUGS = {2101: (1101,), 2102: (1101, 1102), 2103: (1103,), 2104: ()}  # 2104: a vaccine without an ingredient
ATC = {  # concept: (code, class, parent); an ingredient may have more than one fifth level
    5001: ("C", "ATC 1st", None),
    5003: ("C09", "ATC 2nd", 5001),
    5004: ("C09A", "ATC 3rd", 5003),
    5005: ("C09AA", "ATC 4th", 5004),
    5006: ("C09AA03", "ATC 5th", 5005),
    5010: ("C03", "ATC 2nd", 5001),
    5011: ("C03AA03", "ATC 5th", 5010),
    5012: ("C03AX01", "ATC 5th", 5010),
}
ATC_OF = {1101: (5006,), 1102: (5011, 5012), 1103: ()}  # metformin has no class
ICD = {7001: ("ICD9CM", "428.0", 201), 7002: ("ICD9CM", "250.00", 303), 7003: ("ICD10CM", "I50.1", 301)}
SMOKING, NEVER, EX_SMOKER, DRINKER, BMI = 43054909, 6001, 4310250, 6010, 3038553
SPECIAL_TEXTS = [
    'a "quoted" one',
    "comma, semicolon;",
    "two\nlines",
    "Grüße",
    " blanks ",
    "",
    "'; drop table person; --",
]


def ancestors(of, parents):
    """Every ancestor of a node with its minimum distance, the node itself at 0."""
    distances, edge, steps = {of: 0}, {of}, 0
    while edge:
        steps += 1
        edge = {p for node in edge for p in parents.get(node, ())} - set(distances)
        distances |= dict.fromkeys(edge, steps)
    return distances


def parents():
    """The direct ancestors of conditions and drugs."""
    tree = dict(CONDITION_TREE)
    tree |= {code: (parent,) for code, (_, _, parent) in ATC.items() if parent}
    tree |= ATC_OF
    return tree | DRUGS


def _concept():
    rows = [(0, "No matching concept", "None", "Undefined", "No matching concept")]
    rows += [(c, f"Condition {c}", "SNOMED", "Disorder", f"S{c}") for c in (ROOT, *CONDITION_TREE, OUTSIDE)]
    rows += [(c, name, "RxNorm", "Ingredient", f"R{c}") for c, name in INGREDIENTS.items()]
    rows += [(c, f"Drug {c}", "RxNorm", "Clinical Drug", f"R{c}") for c in DRUGS]
    rows += [(c, f"Class {code}", "ATC", klass, code) for c, (code, klass, _) in ATC.items()]
    rows += [(c, f"Source {code}", voc, "code", code) for c, (voc, code, _) in ICD.items()]
    rows += [(8507, "MALE", "Gender", "Gender", "M"), (8532, "FEMALE", "Gender", "Gender", "F")]
    rows += [(8527, "White", "Race", "Race", "5"), (8515, "Asian", "Race", "Race", "2")]
    rows += [(SMOKING, "Tobacco smoking status", "LOINC", "Survey", "72166-2")]
    rows += [
        (NEVER, "Never smoker", "LOINC", "Answer", "LA18978-9"),
        (6002, "Former smoker", "LOINC", "Answer", "x"),
    ]
    rows += [(6003, "Current every day smoker", "LOINC", "Answer", "y")]
    rows += [(DRINKER, "Current drinker of alcohol", "SNOMED", "Clinical Finding", "219006")]
    rows += [(EX_SMOKER, "Ex-smoker", "SNOMED", "Clinical Finding", "8517006")]
    rows += [
        (6020, "BMI of another ontology", "LOINC", "Lab Test", "39156-5"),
        (BMI, "BMI", "LOINC", "Lab Test", "z"),
    ]
    names = ("concept_id", "concept_name", "vocabulary_id", "concept_class_id", "concept_code")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) | {
        "domain_id": ["Any"] * len(rows),
        "standard_concept": ["S"] * len(rows),
    }


def _vocabulary():
    tree = parents()
    lines = [(up, down, n) for down in [*tree, *INGREDIENTS] for up, n in ancestors(down, tree).items()]
    lines = sorted(set(lines))
    maps = [(source, target, "Maps to", None) for source, (_, _, target) in ICD.items()]
    maps += [(target, source, "Mapped from", None) for source, (_, _, target) in ICD.items()]
    maps += [(7002, 201, "Maps to", "D")]  # no longer valid
    maps += [(c, c, "Maps to", None) for c in CONDITION_TREE]
    return {
        "concept": _concept(),
        "concept_ancestor": {
            "ancestor_concept_id": [a for a, _, _ in lines],
            "descendant_concept_id": [b for _, b, _ in lines],
            "min_levels_of_separation": [n for _, _, n in lines],
            "max_levels_of_separation": [n for _, _, n in lines],
        },
        "concept_relationship": {
            name: list(column)
            for name, column in zip(
                ("concept_id_1", "concept_id_2", "relationship_id", "invalid_reason"),
                zip(*maps, strict=True),
                strict=True,
            )
        },
    }


def cdm(seed=0, n_persons=300, n_events=4000):
    """The tables of a CDM as Arrow tables, by name."""
    rng = np.random.default_rng(seed)
    ids = np.arange(1000, 1000 + n_persons)
    tables = {"person": _persons(rng, ids), "death": _deaths(ids), **_vocabulary()}
    visits = _visits(rng, ids)
    tables |= {"visit_occurrence": visits} | _events(rng, ids, visits, n_events)
    tables |= _facts(rng, ids)
    tables["observation_period"] = {
        "observation_period_id": np.arange(len(ids)),
        "person_id": ids,
        "observation_period_start_date": _days(rng, len(ids), 2000, 1),
        "observation_period_end_date": _days(rng, len(ids), 2020, 1),
        "period_type_concept_id": [32817] * len(ids),
    }
    return {name: pa.table(columns) for name, columns in tables.items()}


def cohort():
    """Definition 7 has 40 subjects, one of them twice; definition 8 is another."""
    subjects = [*range(1000, 1040), 1000, 1200]
    return pa.table(
        {
            "cohort_definition_id": [7] * 41 + [8],
            "subject_id": subjects,
            "cohort_start_date": [dt.date(2015, 1, 1) + dt.timedelta(days=i) for i in range(42)],
            "cohort_end_date": [dt.date(2016, 1, 1)] * 42,
        }
    )


def _days(rng, n, year=2008, years=10):
    start = dt.date(year, 1, 1)
    return [start + dt.timedelta(days=int(d)) for d in rng.integers(0, 365 * years, n)]


def _some(rng, values, share):
    """Values with a random share replaced by None."""
    return [
        None if gone else value for value, gone in zip(values, rng.random(len(values)) < share, strict=True)
    ]


def _persons(rng, ids):
    n = len(ids)
    born = _days(rng, n, 1930, 60)
    month = [None if i % 10 == 0 else b.month for i, b in enumerate(born)]
    day = [None if i % 10 in (0, 1) else b.day for i, b in enumerate(born)]
    later = [dt.datetime.combine(b, dt.time(9, 30)) + dt.timedelta(days=1) for b in born]  # takes precedence
    exact = [moment if i % 3 == 0 else None for i, moment in enumerate(later)]
    sex = rng.integers(0, 3, n)
    return {
        "person_id": ids,
        "gender_concept_id": [(8507, 8532, 0)[s] for s in sex],
        "year_of_birth": [b.year for b in born],
        "month_of_birth": pa.array(month, pa.int64()),
        "day_of_birth": pa.array(day, pa.int64()),
        "birth_datetime": pa.array(exact, pa.timestamp("us")),
        "race_concept_id": [(8527, 8515, 8516, 0)[r] for r in rng.integers(0, 4, n)],
        "ethnicity_concept_id": [(38003564, 0)[e] for e in rng.integers(0, 2, n)],
        "person_source_value": [f"mrn-{i}" for i in ids],
        "gender_source_value": [("M", "F", "F")[s] for s in sex],
        "race_source_value": _some(rng, ["Mixed"] * n, 0.5),
        "ethnicity_source_value": _some(rng, ["Other"] * n, 0.5),
    }


def _deaths(ids):
    dead = [int(i) for i in ids[::9]]
    return {
        "person_id": [*dead, dead[0]],  # one of them twice: the first date counts
        "death_date": [*[dt.date(2019, 1, 1)] * len(dead), dt.date(2018, 5, 5)],
        "death_type_concept_id": [32817] * (len(dead) + 1),
    }


def _visits(rng, ids, n=1500):
    days = _days(rng, n)
    return {
        "visit_occurrence_id": np.arange(50_000, 50_000 + n),
        "person_id": rng.choice(ids, n),
        "visit_concept_id": [9202] * n,
        "visit_start_date": days,
        "visit_start_datetime": pa.array(
            [dt.datetime.combine(d, dt.time(8)) for d in days], pa.timestamp("us")
        ),
        "visit_end_date": [None if i % 9 == 0 else d + dt.timedelta(days=i % 4) for i, d in enumerate(days)],
        "visit_end_datetime": pa.array(
            [
                None if i % 3 else dt.datetime.combine(d + dt.timedelta(days=i % 4), dt.time(17))
                for i, d in enumerate(days)
            ],
            pa.timestamp("us"),
        ),
        "admitted_from_concept_id": [0] * n,
    }


def _moment(day, row):
    """One minute to midnight; some are missing, or of the day after."""
    if row % 13 == 0:
        return None
    return dt.datetime.combine(day + dt.timedelta(days=row % 17 == 0), dt.time(23, 59))


def _events(rng, ids, visits, n):
    at = rng.integers(0, len(visits["person_id"]), n)
    person, day = visits["person_id"][at], [visits["visit_start_date"][i] for i in at]
    visit = pa.array(_some(rng, visits["visit_occurrence_id"][at].tolist(), 0.1), pa.int64())
    visit = pa.array(
        [0 if i % 20 == 0 else v for i, v in enumerate(visit.to_pylist())], pa.int64()
    )  # 0: none
    concept = pa.array(_some(rng, rng.choice(CONDITIONS, n).tolist(), 0.01), pa.int64())
    source = rng.choice([*ICD, 0], n)
    written = [SPECIAL_TEXTS[i % len(SPECIAL_TEXTS)] if i % 5 == 0 else f"C{i % 37}" for i in range(n)]
    half = n // 2
    drug = rng.choice([*DRUGS, 1101, 0], half)  # 1101: an ingredient by itself
    return {
        "condition_occurrence": {
            "condition_occurrence_id": np.arange(n),
            "person_id": person,
            "condition_concept_id": concept,
            "condition_start_date": day,
            "condition_start_datetime": pa.array(
                [_moment(d, row) for row, d in enumerate(day)], pa.timestamp("us")
            ),
            "visit_occurrence_id": visit,
            "condition_source_value": _some(rng, written, 0.1),
            "condition_source_concept_id": source,
            "condition_type_concept_id": [(32817, 32821)[i % 2] for i in range(n)],
            "site_column": ["extra"] * n,
        },
        "drug_exposure": {
            "drug_exposure_id": np.arange(half),
            "person_id": person[:half],
            "drug_concept_id": drug,
            "drug_exposure_start_date": day[:half],
            "visit_occurrence_id": visit[:half],
            "drug_source_value": [f"{i % 50:011d}" for i in range(half)],
            "drug_source_concept_id": [0] * half,
            "drug_type_concept_id": [32838] * half,
        },
        "procedure_occurrence": {
            "procedure_occurrence_id": np.arange(100),
            "person_id": person[:100],
            "procedure_concept_id": rng.choice([8001, 8002], 100),
            "procedure_date": day[:100],
            "procedure_type_concept_id": [32821] * 100,
            "procedure_end_date": day[:100],
            "visit_occurrence_id": visit[:100],
        },
        "condition_era": {
            "condition_era_id": np.arange(half),
            "person_id": person[:half],
            "condition_concept_id": concept[:half],
            "condition_era_start_date": day[:half],
            "condition_era_end_date": day[:half],
        },
        "drug_era": {
            "drug_era_id": np.arange(half),
            "person_id": person[:half],
            "drug_concept_id": rng.choice([*INGREDIENTS], half),
            "drug_era_start_date": day[:half],
            "drug_era_end_date": day[:half],
        },
    }


def _facts(rng, ids, n=400):
    asked = rng.choice([SMOKING, EX_SMOKER, DRINKER, 4444], n)
    answer = [
        int(a) if c == SMOKING else 0
        for a, c in zip(rng.choice([NEVER, 6002, 6003, 0], n), asked, strict=True)
    ]
    words = [["unknown if ever smoked", "ex-smoker", None, "Non-smoker"][i % 4] for i in range(n)]
    return {
        "observation": {
            "observation_id": np.arange(n),
            "person_id": rng.choice(ids, n),
            "observation_concept_id": asked,
            "observation_date": _days(rng, n),
            "value_as_concept_id": answer,
            "value_as_string": words,
        },
        "measurement": {
            "measurement_id": np.arange(n),
            "person_id": rng.choice(ids, n),
            "measurement_concept_id": rng.choice([BMI, 6020, 3000963], n),
            "measurement_date": _days(rng, n),
            "value_as_number": _some(rng, rng.normal(28, 5, n).round(2).tolist(), 0.1),
            **_results(np.random.default_rng(3), n),
        },
    }


def _results(rng, n):
    """What the measurement table says about its numbers: ranges, interpretations, units, visits and source codes."""
    return {
        "visit_occurrence_id": _some(rng, rng.integers(1, 300, n).tolist(), 0.3),
        "range_low": _some(rng, [25.0] * n, 0.3),
        "range_high": _some(rng, [30.5] * n, 0.3),
        "value_as_concept_id": rng.choice([0, 4328749, 4267416, 4069590, 4135493], n),
        "unit_concept_id": rng.choice([0, 8840], n),
        "unit_source_value": _some(rng, ["kg/m2"] * n, 0.2),
        "measurement_source_concept_id": rng.choice([0, 6020], n),
        "measurement_source_value": _some(rng, ["BMI-local"] * n, 0.2),
        "measurement_type_concept_id": [(32856, 32817)[i % 3 == 0] for i in range(n)],
    }


VOCABULARY = ("concept", "concept_ancestor", "concept_relationship")


def without_vocabulary(tables):
    """The clinical tables, and those of the vocabulary."""
    return (
        {name: table for name, table in tables.items() if name not in VOCABULARY},
        {name: tables[name] for name in VOCABULARY},
    )


def write_parquet(tables, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        pa.parquet.write_table(table, folder / f"{name}.parquet")
    return folder


def write_csv(tables, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        with pa.CompressedOutputStream(folder / f"{name}.csv.gz", "gzip") as out:
            pa.csv.write_csv(table, out)
    return folder


def write_duckdb(tables, path, schema="main", more=None):
    """`more`: tables of further schemas."""
    import duckdb

    with duckdb.connect(path) as con:
        for name_of_schema, held in {schema: tables, **(more or {})}.items():
            con.execute(f'create schema if not exists "{name_of_schema}"')
            for name, table in held.items():
                con.register("incoming", table)
                con.execute(f'create table "{name_of_schema}"."{name}" as select * from incoming')
                con.unregister("incoming")
    return path


def typed_csv(path):
    """A table of a CDM with the types of a database: numbers as numbers, source codes as text."""
    with pa.csv.open_csv(path) as reader:
        names = reader.schema.names
    text = {name: pa.string() for name in names if name.endswith(("source_value", "concept_code"))}
    return pa.csv.read_csv(
        path, convert_options=pa.csv.ConvertOptions(column_types=text, strings_can_be_null=True)
    )
