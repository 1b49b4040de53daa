"""The compiled patient step, and what it is made of."""
