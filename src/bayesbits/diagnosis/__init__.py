"""Why did a bit not move? Per tensor: what each width is worth, and what pulls its gates which way."""

from bayesbits.diagnosis.diagnose import diagnose
from bayesbits.diagnosis.record import Diagnosis, TensorDiagnosis

__all__ = ["Diagnosis", "TensorDiagnosis", "diagnose"]
