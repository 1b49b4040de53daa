"""What `phenotaste doctor` looks at: packages, machine, kernels, GPU. Nothing here says whose machine it is."""

from phenotaste.doctor.examination import Examination, examine
from phenotaste.doctor.packages import bug_report

__all__ = ["Examination", "bug_report", "examine"]
