"""The patient step on a GPU."""
