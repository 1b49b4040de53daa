"""Factorisation of patients × A × B tensors of counts: the mathematics of the baselines on regular tensors."""
