"""A CDM in a real PostgreSQL: the same rows as from files, for a role that may only read, and no secret in sight."""

from contextlib import suppress

import psycopg
import pyarrow as pa
import pytest

from helpers import postgres
from helpers import simulated_cdm as made
from helpers.omop import OPTIONS, concept_set, expected, read, refusal
from helpers.postgres import free_port, load
from phenotaste.errors import InputError
from phenotaste.sources import omop
from phenotaste.sources.omop.backends import open_cdm
from phenotaste.sources.omop.cdm import CdmBackend
from phenotaste.sources.omop.persons import population
from phenotaste.sources.records import KINDS
from phenotaste.sources.workspace import Workspace


@pytest.fixture(scope="module")
def own(postgres_server):
    """A database of this file's own: others may leave schemas in theirs."""
    return postgres_server.fresh("omop_only")


@pytest.fixture(scope="module")
def server(own, tables):
    load(own, tables, "cdm")
    load(own, {"cohort": made.cohort()}, "results")
    return own


@pytest.fixture
def fresh(own):
    """Fills a schema that is gone after the test."""
    names = []

    def fill(tables, name, **options):
        names.append(name)
        load(own, tables, name, **options)
        return own.url()

    yield fill
    with psycopg.connect(own.url(user="owner")) as link:
        for name in names:
            link.execute(psycopg.sql.SQL("drop schema {} cascade").format(psycopg.sql.Identifier(name)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_rows_as_from_parquet(server, parquet, options):
    there = dict(options)
    if "cohort_table" in options:
        there["cohort_table"] = "results.cohort"
    found, wanted = read(server.url(), **there), expected(parquet, **options)
    assert len(wanted["events"][1]) > 300
    for name, part in wanted.items():
        assert found[name] == part, name


@pytest.fixture(scope="module")
def apart(postgres_server, tables):
    """The clinical tables in one schema, the vocabulary in another."""
    database = postgres_server.fresh("omop_apart")
    clinical, vocabulary = made.without_vocabulary(tables)
    load(database, clinical, "clinical")
    load(database, vocabulary, "vocab")
    return database


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[1], OPTIONS[3], OPTIONS[5]], ids=str)
def test_a_vocabulary_in_a_second_schema(apart, parquet, options):
    elsewhere = {"schema": "clinical", "vocabulary_schema": "vocab"}
    assert read(apart.url(), **elsewhere, **options) == expected(parquet, **options)


def test_a_vocabulary_in_a_folder_beside_the_database(apart, parquet):
    assert read(apart.url(), schema="clinical", vocabulary_folder=parquet) == expected(parquet)


def test_a_missing_vocabulary_names_the_schemas_that_have_one(apart):
    (said,) = read(apart.url(), schema="clinical")["warnings"]
    assert "has no concept table: concepts have no names" in said
    assert said.endswith("(schemas with a concept table: vocab).")
    assert apart.reader_password not in said
    wrong = refusal(apart.url(), schema="clinical", vocabulary_schema="absent")
    assert wrong.endswith("those with a concept table are: vocab.")


def test_concept_sets_are_resolved_in_the_database(server, parquet, tmp_path):
    chosen = concept_set(tmp_path / "set.json", (101, False, True, True), (302, True, True, False))
    for codes in omop.CODES:
        options = {"index_concepts": chosen, "codes": codes}
        assert read(server.url(), **options)["index_codes"] == read(parquet, **options)["index_codes"]


def test_long_lists_of_concepts_are_queried_in_chunks(server, parquet, monkeypatch):
    monkeypatch.setattr("phenotaste.sources.omop.postgres.IDS_PER_QUERY", 3)
    assert read(server.url())["names"] == expected(parquet)["names"]


def test_upper_case_names_and_everything_as_text(tables, parquet, fresh):
    """What a CSV loader leaves behind: quoted names in capitals, and ids, dates and numbers as text."""
    loud = {
        name.upper(): table.rename_columns([column.upper() for column in table.column_names])
        for name, table in (tables | {"cohort": made.cohort()}).items()
    }
    text = {column: "text" for table in loud.values() for column in table.column_names}
    url = fresh(loud, 'Odd "Name"', types=text)
    options = {"kinds": KINDS}
    assert read(url, schema='odd "name"', **options) == expected(parquet, **options)
    cohort = {"cohort_table": 'odd "name".Cohort', "cohort_id": 7}
    assert read(url, schema='Odd "Name"', **cohort) == expected(parquet, cohort_table="cohort", cohort_id=7)


def test_other_types_of_columns(tables, parquet, own, fresh):
    types = {
        "person_id": "numeric(12, 0)",
        "condition_concept_id": "integer",
        "condition_start_date": "timestamp with time zone",  # midnight UTC
        "drug_exposure_start_date": "timestamp",
        "visit_occurrence_id": "varchar(20)",
        "value_as_number": "numeric",
    }
    url = fresh(tables, "typed", types=types)
    with psycopg.connect(own.url(user="owner")) as link:  # customs of a role do not matter
        link.execute("alter role reader set datestyle to 'German'")
        link.execute("alter role reader set timezone to 'America/New_York'")
    try:
        assert read(url, schema="typed") == expected(parquet)
    finally:
        with psycopg.connect(own.url(user="owner")) as link:
            link.execute("alter role reader reset all")


def test_views_are_tables_too(server, tables, parquet):
    with psycopg.connect(server.url(user="owner")) as link:
        link.execute("create schema seen")
        for name in tables:
            names = (psycopg.sql.Identifier("seen", name), psycopg.sql.Identifier("cdm", name))
            kind = psycopg.sql.SQL("materialized view" if name == "person" else "view")
            link.execute(psycopg.sql.SQL("create {} {} as select * from {}").format(kind, *names))
        link.execute(
            "grant usage on schema seen to reader; grant select on all tables in schema seen to reader"
        )
    try:
        assert read(server.url(), schema="seen") == expected(parquet)
    finally:
        with psycopg.connect(server.url(user="owner")) as link:
            link.execute("drop schema seen cascade")


def test_only_the_population_leaves_the_server(server, monkeypatch):
    """Every query about patients is limited to the cohort, and only columns that are needed are asked for."""
    import phenotaste.sources.omop.postgres as module

    asked = {}
    original = module.PostgresBackend._copied

    def noting(self, query, schema):
        batches = list(original(self, query, schema))
        asked[tuple(schema.names)] = sum(batch.num_rows for batch in batches)
        yield from batches

    monkeypatch.setattr(module.PostgresBackend, "_copied", noting)
    held = read(server.url(), cohort_table="results.cohort", cohort_id=7)
    conditions = asked[("person_id", "time", "visit_occurrence_id", "concept")]
    assert 0 < conditions <= len(held["events"][1])
    assert max(asked.values()) < 1000


def test_the_server_can_use_its_indexes(tables, own, fresh):
    """A small cohort or a few concepts of a large table: keys are compared as they are, without a cast."""
    import ibis

    keys = {"condition_occurrence": "person_id", "concept_ancestor": "descendant_concept_id"}
    fresh(tables | {"cohort": made.cohort()}, "keyed", types=dict.fromkeys(keys.values(), "integer"))
    with psycopg.connect(own.url(user="owner")) as link:
        for table, key in keys.items():
            link.execute(f"create index {table}_key on keyed.{table} ({key})")
    with Workspace(threads=1) as workspace, open_cdm(workspace, own.url(), "keyed") as cdm:
        cdm.connection.execute(
            "set enable_seqscan to off; set enable_hashjoin to off; set enable_mergejoin to off"
        )
        selected = population(cdm, "cohort", 7)
        ancestor = cdm.table("concept_ancestor")
        for query, index in (
            (selected.restrict(cdm.table("condition_occurrence")), "condition_occurrence_key"),
            (ancestor.filter(ancestor.descendant_concept_id.isin([1, 2, 3])), "concept_ancestor_key"),
        ):
            text = psycopg.sql.SQL(str(ibis.to_sql(query, dialect="postgres")))
            plan = cdm.connection.execute(psycopg.sql.SQL("explain {}").format(text)).fetchall()
            assert any(index in line for (line,) in plan), plan


def test_the_session_cannot_write(server):
    with Workspace(threads=1) as workspace:
        backend = omop.postgres.PostgresBackend(workspace, server.url(user="owner"))
        try:
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                backend.connection.execute("create table cdm.mine (a integer)")
        finally:
            backend.close()


def test_all_tables_are_of_one_moment(server, tables):
    """Rows that others add while we read are not seen in later tables."""
    with Workspace(threads=1) as workspace:
        backend = omop.postgres.PostgresBackend(workspace, server.url())
        try:
            backend.select_schema("cdm")
            before = backend.fetch(backend.table("death"), "omop_first").count().to_pyarrow().as_py()
            with psycopg.connect(server.url(user="owner")) as link:
                link.execute("insert into cdm.death (person_id, death_date) values (1001, '2020-01-01')")
            after = backend.fetch(backend.table("death"), "omop_second").count().to_pyarrow().as_py()
            assert before == after == len(tables["death"])
        finally:
            backend.close()
            with psycopg.connect(server.url(user="owner")) as link:
                link.execute("delete from cdm.death where person_id = 1001")


def test_text_round_trips_through_the_database(own, fresh):
    """Quotes, commas, line ends, blanks and emptiness: null and empty text are two things."""
    words = [*made.SPECIAL_TEXTS, None, "\\N", '"', "a\r\nb", "NULL", "\\."]
    fresh({"person": pa.table({"person_id": list(range(len(words)))}), "t": pa.table({"w": words})}, "words")
    with Workspace(threads=1) as workspace:
        backend = omop.postgres.PostgresBackend(workspace, own.url())
        try:
            found = backend.fetch(backend.open("words", "t"), "words").w.to_pyarrow().to_pylist()
        finally:
            backend.close()
    assert sorted(map(repr, found)) == sorted(map(repr, words))


SECRET = "pa55-wörd"


def test_errors_contain_no_secret(server, monkeypatch, tmp_path):
    """One sentence for each way to fail, without user or password."""
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    at = f"127.0.0.1:{server.port}"
    free = free_port()
    known = server.reader_password
    cases = {
        f"postgresql://reader:{SECRET}@{at}/cdm": "the password",
        f"postgresql://stranger:{SECRET}@{at}/cdm": "the password",
        f"postgresql://reader@{at}/cdm": "the password",
        f"postgresql://reader:{known}@{at}/absent": "does not exist as a database",
        f"postgresql://reader:{known}@{at}/postgres": "no readable person table",
        f"postgresql://reader:{SECRET}@127.0.0.1:{free}/cdm": "could not be reached",
        f"postgresql://reader:{SECRET}@no-such-host.invalid/cdm": "could not be reached",
        f"postgresql://reader:{SECRET}@{at}/cdm?sslmode=require": "check sslmode",
        f"postgresql://reader:{SECRET}@{at}:7/cdm": "not a valid PostgreSQL address",
        f"postgresql://reader:{SECRET}@{at}/cdm?nonsense=1": "not a valid PostgreSQL address",
        f"postgresql://reader:{SECRET}/@{at}/cdm": "postgresql://…",
        f"postgresql:///cdm?host=127.0.0.1&port={server.port}&user=reader&password={SECRET}": "the password",
        f"mysql://reader:{SECRET}@{at}/cdm": "not a supported address",
        f"host=127.0.0.1 password={SECRET}": "does not exist",
    }
    for url, wanted in cases.items():
        said = refusal(url)
        assert wanted in said
        for secret in (SECRET, known, "reader", "stranger"):
            assert secret not in said


def test_schemas_that_do_not_exist(server):
    said = refusal(server.url(), schema="cdm'; drop schema cdm; --")
    assert "those with a person table are: cdm" in said
    assert server.reader_password not in said
    assert "no person table in that schema" in refusal(server.url(), schema="results")
    assert "no readable cohort table" in refusal(
        server.url(), cohort_table='results.x"; drop table y', cohort_id=1
    )


def test_tables_that_the_role_may_not_read(server, tables, fresh):
    url = fresh(tables, "partly")
    with psycopg.connect(server.url(user="owner")) as link:
        link.execute("revoke select on partly.condition_occurrence, partly.condition_era from reader")
        link.execute("revoke select on partly.drug_exposure, partly.drug_era from reader")
    assert "no event table" in refusal(url, schema="partly")
    with psycopg.connect(server.url(user="owner")) as link:
        link.execute("grant select (person_id) on partly.condition_occurrence to reader")
    assert "may not read" in refusal(url, schema="partly")


def test_missing_columns_and_bad_values(tables, fresh):
    held = tables["condition_occurrence"]
    url = fresh(tables | {"condition_occurrence": held.drop(["condition_concept_id"])}, "lacking")
    assert "lacks the column condition_concept_id" in refusal(url, schema="lacking")
    days = [str(day) for day in held["condition_start_date"].to_pylist()]
    days[7] = "the 31st"
    at = held.schema.get_field_index("condition_start_date")
    bad = held.set_column(at, "condition_start_date", pa.array(days))
    said = refusal(fresh(tables | {"condition_occurrence": bad}, "bad"), schema="bad")
    assert "condition_occurrence has values" in said
    assert "31st" not in said


def test_columns_of_the_wrong_type(tables, fresh):
    held = tables["condition_occurrence"]
    at = held.schema.get_field_index("condition_start_date")
    for kind, value in (("boolean", True), ("bytea", b"1")):
        wrong = held.set_column(at, "condition_start_date", pa.array([value] * len(held)))
        types = {"condition_start_date": kind}
        url = fresh({"person": tables["person"], "condition_occurrence": wrong}, f"wrong_{kind}", types=types)
        assert "column condition_start_date of condition_occurrence" in refusal(url, schema=f"wrong_{kind}")


def test_passwords_from_the_environment_and_pgpass(server, monkeypatch, tmp_path):
    at = f"127.0.0.1:{server.port}"
    bare = f"postgresql://reader@{at}/{server.database}"
    monkeypatch.setenv("PGPASSWORD", server.reader_password)
    assert read(bare)["persons"]
    monkeypatch.delenv("PGPASSWORD")
    kept = tmp_path / "pgpass"
    kept.write_text(f"127.0.0.1:{server.port}:{server.database}:reader:{server.reader_password}\n")
    kept.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(kept))
    assert read(bare)["persons"]
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    services = tmp_path / "services"
    services.write_text(
        f"[hospital]\nhost=127.0.0.1\nport={server.port}\ndbname={server.database}\nuser=reader\npassword={server.reader_password}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    assert read("postgresql:///?service=hospital")["persons"]


def test_a_lost_connection_is_one_sentence(server, monkeypatch):
    original = CdmBackend.table

    def dying(self, name):
        if name == "observation_period":
            with psycopg.connect(server.url(user="owner"), autocommit=True) as link:
                link.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'reader'"
                )
        return original(self, name)

    monkeypatch.setattr(CdmBackend, "table", dying)
    with Workspace(threads=1) as workspace, pytest.raises(InputError) as refused:
        omop.read(workspace, server.url())
    assert "connection was lost" in str(refused.value)


def test_no_connection_stays_open(server):
    links = []
    with Workspace(threads=1) as workspace:
        with open_cdm(workspace, server.url(), "cdm") as cdm:
            links.append(cdm.connection)
        with suppress(InputError), open_cdm(workspace, server.url(), "cdm") as cdm:
            links.append(cdm.connection)
            raise InputError("something else.")
    assert [link.closed for link in links] == [True, True]


def test_without_a_server_ci_fails_and_local_runs_skip(monkeypatch):
    monkeypatch.setattr(postgres, "BINARIES", [])
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="not installed"):
        postgres.binaries()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="not installed"):
        postgres.binaries()
