"""Settings: what is allowed, the TOML they come from and go to, and the defaults of each source."""

import string
from dataclasses import fields, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phenotaste.build.settings import (
    RULES,
    SECTIONS,
    SOURCES,
    Groups,
    Index,
    Match,
    Measurements,
    Settings,
    Static,
    Weights,
    source_defaults,
)
from phenotaste.build.toml import from_toml, parse, template, to_toml
from phenotaste.errors import InputError
from phenotaste.sources.records import KINDS

texts = st.text(min_size=1, max_size=8).filter(str.strip)
lists = st.lists(texts, max_size=3, unique=True).map(tuple)
codes = st.builds("{}:{}".format, st.text(string.ascii_letters, min_size=1), texts)
groups = st.builds(
    Groups,
    ccs=st.sampled_from([None, "single", "multi3"]),
    atc=st.none() | st.integers(1, 5),
    table=st.none() | texts,
    multi3=texts,
    unmapped=st.sampled_from(["drop", "keep"]),
    names=st.none() | texts,
)
lengths = st.builds(
    "{}{}".format, st.integers(1, 1200), st.sampled_from(["min", "h", "d", " days", "w", "mo", ""])
)
longest = st.integers(0, 1200)
indices = st.builds(
    Index,
    codes=st.lists(codes, max_size=3, unique=True).map(tuple),
    labels=st.none() | texts,
    label_rows=st.sampled_from(["all", "first"]),
    window=lengths,
    gap=lengths | longest,
    washout=lengths | longest,
    covered=st.booleans(),
) | st.builds(Index, labels=st.none() | texts, first=lengths)
matches = st.builds(
    Match,
    ratio=st.integers(1, 100),
    age_years=st.floats(0, allow_infinity=False, allow_nan=False),
    encounter_days=st.integers(0, 400),
    same=lists,
    seed=st.integers(0, 2**32 - 1),
)
statics = st.builds(
    Static,
    columns=st.none() | lists,
    age_bands=st.lists(st.integers(0, 150), min_size=1, unique=True).map(sorted).map(tuple),
    age_at=st.none() | st.dates().map(str),
    bmi_bands=st.booleans(),
    bands=st.sampled_from([(), ("weight=60,80.5",), ("weight=60", "height=1.5,2")]),
)
measurement_settings = st.builds(
    Measurements,
    level=st.sampled_from(["abnormal", "all", "counts"]),
    ranges=st.none() | texts,
    quantiles=st.none() | st.tuples(st.floats(0.001, 0.5), st.floats(0.501, 0.999)),
    learn_from=st.none() | texts,
)
factors = st.floats(0, exclude_min=True, allow_infinity=False, allow_nan=False)
kind_weights = st.builds(Weights, **dict.fromkeys(KINDS, factors))


@st.composite
def all_settings(draw):
    index = draw(st.none() | indices)
    return Settings(
        visit=draw(st.sampled_from([None, "encounter", "day", "week", "month", "6h", "90 minutes"])),
        values=draw(st.sampled_from(["counts", "binary", "log"])),
        kinds=tuple(draw(st.permutations(list(KINDS)))[: draw(st.integers(1, 4))]),
        min_visits=draw(st.integers(1, 2**31 - 1)),
        min_patients=draw(st.integers(1, 2**31 - 1)),
        implausible=draw(st.sampled_from(["keep", "drop"])),
        groups=draw(groups),
        measurements=draw(measurement_settings),
        weights=draw(kind_weights),
        index=index,
        match=None if index is None or index.first else draw(st.none() | matches),
        static=draw(statics),
    )


@given(all_settings(), st.sampled_from(SOURCES))
@example(Settings(groups=Groups(table='\x7f"\\\n\t\x00é')), "synpuf")
def test_settings_round_trip_through_a_file_over_any_defaults(settings, source):
    assert parse(to_toml(settings), source_defaults(source)) == settings


@pytest.mark.parametrize("source", [None, *SOURCES])
def test_the_template_gives_the_defaults_and_shows_every_setting(source):
    text = template(source)
    assert parse(text, Settings(visit="week", groups=Groups(atc=3))) == source_defaults(source)
    start = text.index("# # ")
    opened = "\n".join(
        line.removeprefix("# ") for line in text[start : text.index("# Static features")].splitlines()
    )
    shown = parse(opened)
    assert (shown.index, shown.match) == (Index(), Match())
    for _, rules in [(Settings, RULES), *SECTIONS.values()]:
        assert all(f"{name} = " in text for name in rules)
    assert max(map(len, text.splitlines())) <= 120


def test_every_setting_has_a_rule():
    assert {f.name for f in fields(Settings)} == {*RULES, *SECTIONS, "source"}
    for kind, rules in SECTIONS.values():
        assert [f.name for f in fields(kind)] == list(rules)


def test_synpuf_starts_as_in_the_paper_and_the_others_plain():
    synpuf = source_defaults("synpuf")
    assert (synpuf.visit, synpuf.groups.ccs, synpuf.kinds) == ("day", "single", ("diagnosis",))
    assert synpuf.static.age_bands == (65, 70, 75, 80, 85)
    assert source_defaults("eicu") == Settings(visit="day")
    others = set(SOURCES) - {"synpuf", "eicu"}
    assert all(source_defaults(source) == Settings() for source in others)


def test_a_file_overrides_only_its_own_keys(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(
        'min_visits = 5\n[groups]\ntable = "drugs.csv"\n[index]\ncodes = ["CCS:108"]\n[static]\nage_at = 2010-12-31\n'
    )
    base = source_defaults("synpuf")
    expected = replace(
        base,
        min_visits=5,
        groups=Groups(ccs="single", table=str(tmp_path / "drugs.csv")),
        index=Index(codes=("CCS:108",)),
        static=replace(base.static, age_at="2010-12-31"),
    )
    assert from_toml(file, base) == expected


def test_a_file_can_reset_a_default():
    base = source_defaults("synpuf")
    assert parse('visit = "auto"\n[groups]\nccs = "none"', base) == replace(base, visit=None, groups=Groups())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("min_visit = 5", ["min_visit is not a setting", "min_visits, min_patients"]),
        ("[group]\n", ["group is not a setting", "groups, index, match, static"]),
        ("[groups]\nicd = 9", ["groups.icd is not a setting", "ccs, atc, table, multi3, unmapped, names"]),
        ("groups = 1", ["groups must be a table"]),
        ('visit = "hour"', ["visit must be", '"week", "month" or a duration such as "6h"', '"auto"']),
        ("visit = 1", ["visit must be"]),
        ('values = "sums"', ["values must be", '"counts", "binary" or "log"']),
        ('kinds = "diagnosis"', ["kinds must be a list"]),
        ("kinds = []", ["kinds must be a list of one or more"]),
        ('kinds = ["lab"]', ["kinds must be", '"diagnosis", "medication", "procedure" or "measurement"']),
        ('kinds = ["diagnosis", "diagnosis"]', ["all different"]),
        ("kinds = [[1]]", ["kinds must be"]),
        ("min_visits = -1", ["min_visits must be an integer, 1 or more"]),
        ("min_visits = true", ["min_visits must be an integer"]),
        ("min_visits = 2.0", ["min_visits must be an integer"]),
        ("min_patients = 0", ["min_patients must be an integer, 1 or more"]),
        ('[groups]\nccs = "multi3"', ["groups.multi3"]),
        ("[groups]\natc = 6", ["groups.atc must be an integer, 1 to 5, or 0"]),
        ("[index]\nwindow = 0", ["index.window", "a duration above 0"]),
        ('[index]\ngap = "2 fortnights"', ["index.gap", "48h"]),
        ('[index]\nwashout = "1201mo"', ["index.washout", "a duration such as"]),
        ('[index]\nfirst = "48h"\ncodes = ["X:1"]', ["index.first", "no index codes"]),
        ('visit = "3mo"', ["visit must be", "6h"]),
        ('[index]\ncodes = ["428"]', ["index.codes", "ICD9CM:428*"]),
        ('[index]\ncovered = "yes"', ["index.covered must be true or false"]),
        ("[match]\nratio = 1", ["match needs an index"]),
        ("[index]\n[match]\nratio = 0", ["match.ratio"]),
        ("[index]\n[match]\nage_years = nan", ["match.age_years must be a number, 0 or more"]),
        ("[static]\nage_bands = [70, 60]", ["static.age_bands", "increasing"]),
        ("[static]\nage_bands = []", ["static.age_bands"]),
        ('[static]\nage_at = "2010-02-30"', ["static.age_at must be a date such as 2010-12-31"]),
        ("[static]\nage_at = 2010-12-31T00:00:00", ["static.age_at"]),
        ("[measurements]\nquantiles = [0.9, 0.1]", ["measurements.quantiles", "two increasing numbers"]),
        ('[measurements]\nlevel = "high"', ["measurements.level"]),
        ("[weights]\nmeasurement = 0", ["weights.measurement must be a number above 0"]),
        ("min_visits = \nvalues = 1", ["TOML is invalid", "line 1"]),
        ("min_visits = 1\nmin_visits = 2", ["TOML is invalid"]),
    ],
)
def test_typing_errors_in_settings_are_named(tmp_path, text, words):
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(InputError) as refusal:
        from_toml(file)
    message = str(refusal.value)
    assert message.startswith(f"in {file}, ")
    assert message.count("\n") == 0
    assert all(word in message for word in words), message


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        from_toml(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        from_toml(tmp_path / "bytes.toml")
    with pytest.raises(InputError, match="is a folder"):
        from_toml(tmp_path)


def test_settings_in_python_raise_the_same_errors():
    with pytest.raises(InputError, match="visit must be"):
        Settings(visit="hour")
    with pytest.raises(InputError, match=r"static\.columns must be a list of texts"):
        Static(columns=["sex"])  # a list could be changed later
    with pytest.raises(InputError, match="match needs an index"):
        replace(Settings(), match=Match())
