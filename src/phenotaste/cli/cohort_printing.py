"""What a built cohort looks like on a terminal, and as JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from phenotaste.cli.printing import console, print_list
from phenotaste.report.text import readable

if TYPE_CHECKING:
    from phenotaste.build import Built

COUNTS = ("patients", "visits", "events")
# Of the data quality, what is worth a line where it is not zero; the totals stand in the attrition table.
ODD = {
    "events_without_code": "events without a code, dropped",
    "events_without_date": "events without a date, dropped",
    "events_of_unknown_patients": "events of patients who are not listed, dropped",
    "duplicate_events": "duplicate events, each counted once",
    "events_before_birth": "events before birth, {}",
    "events_after_death": "events after death, {}",
    "events_in_the_future": "events in the future, {}",
    "visits_without_codes": "visits without codes",
    "patients_without_events": "patients without events",
}
FILES = {
    "attrition": "attrition.csv",
    "settings": "settings.toml",
    "quality": "quality.json",
    "unmapped": "unmapped.csv",
    "patients": "patients.parquet",
    "windows": "windows.svg",
}


def print_built(built: "Built", location: str, out: Path) -> None:
    lines = [line.split(maxsplit=1) for line in str(built.cohort.summary()).splitlines()]
    print_list(f"Cohort of {location}", [(name.capitalize(), text) for name, text in lines])
    print_attrition(built)
    fate = "dropped" if built.settings.implausible == "drop" else "kept"
    odd = [
        (f"{built.quality[name]:,}", text.format(fate))
        for name, text in ODD.items()
        if built.quality.get(name)
    ]
    if odd:
        print_list("Data quality", odd)
    if len(built.unmapped):
        print_list("Codes in no group", [(f"{len(built.unmapped):,}", unmapped(built))])
    if built.notes:
        print_list("Notes", [("-", readable(note)) for note in built.notes])
    print_list(
        "Saved", [(name.capitalize(), str(path)) for name, path in places(built, out).items()], wrap=False
    )


def print_attrition(built: "Built") -> None:
    screen = console()
    screen.print(Text("\nAttrition: what is left after each step", "bold"))
    table = Table(box=SIMPLE_HEAD, pad_edge=True, show_edge=False)
    table.add_column("step", overflow="fold")
    for name in COUNTS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in built.attrition.to_dict("records"):
        table.add_row(Text(row["step"]), *(f"{row[name]:,}" for name in COUNTS))
    screen.print(table)


def unmapped(built: "Built") -> str:
    events = int(built.unmapped["events"].sum())
    kept = "kept as features of their own" if built.settings.groups.unmapped == "keep" else "dropped"
    return f"codes with {events:,} events, {kept} and listed in {FILES['unmapped']}"


def places(built: "Built", out: Path) -> dict[str, Path]:
    written = built.files()
    return {"cohort": out} | {name: out / file for name, file in FILES.items() if file in written}


def as_record(built: "Built", source: str, location: str, out: Path) -> dict[str, Any]:
    return {
        **{name: str(path) for name, path in places(built, out).items()},
        "source": source,
        "location": location,
        "summary": built.cohort.summary().as_dict(),
        "attrition_table": built.attrition.to_dict("records"),
        "data_quality": built.quality,
        "notes": list(built.notes),
    }
