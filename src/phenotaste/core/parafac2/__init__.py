"""PARAFAC2 with exact cross-products: the mathematics of the baselines."""
