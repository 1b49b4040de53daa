"""The settings that each source starts from; a file of settings overrides them, flags override the file."""

from phenotaste.build.settings import Groups, Settings, Static
from phenotaste.sources.records import DIAGNOSIS

SOURCES = ("synpuf", "omop", "meds", "synthea", "tables")


def of_source(source: str | None) -> Settings:
    """Settings that need no further flag; None: those that all sources share."""
    if source == "synpuf":
        # As the paper has it: SynPUF's drug codes were made unrecognisable, and its patients are insured from 65.
        return Settings(
            visit="day",
            kinds=(DIAGNOSIS,),
            groups=Groups(ccs="single"),
            static=Static(age_bands=(65, 70, 75, 80, 85)),
        )
    return Settings()
