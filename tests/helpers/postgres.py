"""A real PostgreSQL server for tests: a private cluster of Debian's package, gone when the tests are done."""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

BINARIES = sorted(
    Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True
)


class Server(NamedTuple):
    """A running server with an owner, who fills databases, and a reader, who may only select."""

    port: int
    owner_password: str
    reader_password: str
    database: str = "cdm"

    def url(self, database=None, user="reader", password=None, port=None):
        database = database or self.database
        known = {"reader": self.reader_password, "owner": self.owner_password}
        password = known[user] if password is None else password
        return f"postgresql://{user}:{password}@127.0.0.1:{port or self.port}/{database}"

    def fresh(self, database):
        """A new database of the server, where the reader may connect and create nothing."""
        import psycopg
        from psycopg import sql

        name = sql.Identifier(database)
        with psycopg.connect(self.url("postgres", "owner"), autocommit=True) as link:
            link.execute(sql.SQL("create database {} template template0").format(name))
            link.execute(sql.SQL("revoke all on database {} from public").format(name))
            link.execute(sql.SQL("grant connect on database {} to reader").format(name))
        return self._replace(database=database)


def binaries():
    """The folder of initdb and pg_ctl; without one the test fails in CI, and is skipped elsewhere."""
    if BINARIES and (os.geteuid() != 0 or shutil.which("runuser")):
        return BINARIES[0]
    why = "PostgreSQL is not installed: run sudo apt-get install postgresql"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def _run(*command, **options):
    """Run as the user postgres where we are root, whom PostgreSQL refuses."""
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*prefix, *map(str, command)], check=True, cwd="/", stdout=subprocess.DEVNULL, **options)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running():
    """A server that accepts passwords only; each process of a test run has its own."""
    bin_ = binaries()
    home = Path(tempfile.mkdtemp(prefix="phenotaste-pg-"))
    data, password_file, log = home / "data", home / "password", home / "log"
    owner = secrets.token_hex(12)
    password_file.write_text(owner)
    if os.geteuid() == 0:
        for path in (home, password_file):
            shutil.chown(path, "postgres", "postgres")
    try:
        _run(
            *(bin_ / "initdb", "-D", data, "-U", "owner", "-A", "scram-sha-256", "--pwfile", password_file),
            *("-E", "UTF8", "--locale=C", "--no-sync"),
        )
        port = free_port()
        settings = (
            f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={home} -c fsync=off"
        )
        _run(bin_ / "pg_ctl", "-D", data, "-l", log, "-w", "-t", "60", "-o", settings, "start")
        try:
            yield _with_reader(Server(port, owner, secrets.token_hex(12)))
        finally:
            _run(bin_ / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _with_reader(server):
    import psycopg
    from psycopg import sql

    with psycopg.connect(server.url("postgres", "owner"), autocommit=True) as link:
        password = sql.Literal(server.reader_password)
        link.execute(sql.SQL("create role reader login password {}").format(password))
        link.execute("revoke create, temporary on database postgres from public")
    return server.fresh("cdm")


def load(server, tables, schema, database=None, types=None):
    """Arrow tables into a schema, readable by the reader; `types` overrides those of columns by name."""
    import psycopg
    from psycopg import sql

    name = sql.Identifier(schema)
    with psycopg.connect(server.url(database, "owner"), options="-c timezone=UTC") as link:
        link.execute(sql.SQL("create schema if not exists {}").format(name))
        for title, table in tables.items():
            _fill(link, sql.Identifier(schema, title), table, types or {})
        link.execute(sql.SQL("grant usage on schema {} to reader").format(name))
        link.execute(sql.SQL("grant select on all tables in schema {} to reader").format(name))


def _fill(link, target, table, types):
    import pyarrow.types as kinds
    from psycopg import sql

    def postgres_type(field):
        if field.name in types:
            return types[field.name]
        if kinds.is_integer(field.type):
            return "bigint"
        if kinds.is_floating(field.type):
            return "double precision"
        if kinds.is_date(field.type):
            return "date"
        return "timestamp" if kinds.is_timestamp(field.type) else "text"

    columns = sql.SQL(", ").join(
        sql.Identifier(field.name) + sql.SQL(" ") + sql.SQL(postgres_type(field)) for field in table.schema
    )
    link.execute(sql.SQL("create table {} ({})").format(target, columns))
    with link.cursor() as cursor, cursor.copy(sql.SQL("copy {} from stdin").format(target)) as copy:
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            copy.write_row(row)


@pytest.fixture(scope="session")
def postgres_server():
    with running() as server:
        yield server
