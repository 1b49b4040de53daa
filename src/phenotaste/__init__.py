"""Temporal and static tensor factorisation (TASTE) of health records."""
