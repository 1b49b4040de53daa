"""The checks of `phenotaste doctor`: packages, machine, kernels, GPU. No result identifies the machine or a user."""

from phenotaste.doctor.packages import bug_report
from phenotaste.doctor.report import DoctorReport, examine

__all__ = ["DoctorReport", "bug_report", "examine"]
